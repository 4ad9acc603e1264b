#include "library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "error.h"

namespace dl {
namespace {

struct Loaded {
  std::mutex guard;
  std::unique_ptr<Mpi> mpi;
  std::string path;
};

Loaded& loaded() {
  static Loaded* one = new Loaded;  // never destroyed: MPI cannot be unloaded
  return *one;
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

// libmpi.so.12, libmpich.so.12 (Debian's name), libmpi_abi.so.1, libmpi_cray.so.12, libmpi_gnu_112.so.12
bool is_mpi_library(const std::string& file) {
  for (const char* stem : {"libmpi.so", "libmpich.so", "libmpi_abi.so", "libmpi_cray.so", "libmpi_gnu", "libmpi_ibm.so"})
    if (starts_with(file, stem)) return true;
  return false;
}

std::string already_in_process() {
  std::string found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* result) {
        if (!is_mpi_library(base_name(info->dlpi_name))) return 0;
        *static_cast<std::string*>(result) = info->dlpi_name;
        return 1;
      },
      &found);
  return found;
}

// The folders of the programs that started this one: mpiexec's proxy lives in bin beside lib.
std::vector<std::string> launcher_prefixes() {
  std::vector<std::string> prefixes;
  int pid = getppid();
  for (int generation = 0; generation < 6 && pid > 1; ++generation) {
    char exe[4096];
    const auto length = readlink(("/proc/" + std::to_string(pid) + "/exe").c_str(), exe, sizeof exe - 1);
    if (length > 0) {
      std::string path(exe, static_cast<std::size_t>(length));
      const std::string file = base_name(path);
      for (const char* known : {"hydra_pmi_proxy", "mpiexec", "mpirun", "prterun", "prted", "orted", "orterun"})
        if (starts_with(file, known)) {
          path.resize(path.rfind('/'));
          prefixes.push_back(path.substr(0, path.rfind('/')));
          break;
        }
    }
    int parent = 0;
    if (std::FILE* stat = std::fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "r")) {
      if (std::fscanf(stat, "%*d (%*[^)]) %*c %d", &parent) != 1) parent = 0;
      std::fclose(stat);
    }
    pid = parent;
  }
  return prefixes;
}

std::vector<std::string> file_names(MpiFamily family) {
  if (family == MpiFamily::openmpi) return {"libmpi.so.40"};
  return {"libmpi.so.12", "libmpich.so.12", "libmpi_cray.so.12", "libmpi_abi.so.1", "libmpi_abi.so.0"};
}

MpiFamily family_of(void* library, const std::string& path) {
  if (dlsym(library, "ompi_mpi_comm_world") != nullptr) return MpiFamily::openmpi;
  if (starts_with(base_name(path), "libmpi_abi")) return MpiFamily::standard_abi;
  return MpiFamily::mpich;
}

// Global, because Open MPI's plugins look for its symbols there, and so that mpi4py takes this same library later.
void* open_library(const std::string& name) { return dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL); }

std::string path_of(void* library, const std::string& name) {
  Dl_info info;
  void* symbol = dlsym(library, "MPI_Init_thread");
  return symbol != nullptr && dladdr(symbol, &info) != 0 ? info.dli_fname : name;
}

void* search(const Launcher& launcher, const std::string& named, const std::string& prefix) {
  if (!named.empty()) {
    if (void* library = open_library(named)) return library;
    const char* why = dlerror();
    throw CommError("the MPI library " + named + " does not load: " + (why == nullptr ? "" : why),
                    "name another by DL_COMM_MPI_LIBRARY, or unset it");
  }
  if (const std::string present = already_in_process(); !present.empty())
    if (void* library = open_library(present)) return library;
  std::vector<MpiFamily> families;
  if (launcher.family) families.push_back(*launcher.family);
  else families = {MpiFamily::mpich, MpiFamily::openmpi};
  std::vector<std::string> prefixes = launcher_prefixes();
  if (!prefix.empty()) prefixes.push_back(prefix);
  for (MpiFamily family : families) {
    for (const std::string& folder : prefixes)
      for (const char* place : {"/lib/", "/lib64/"})
        for (const std::string& file : file_names(family)) {
          const std::string path = folder + place + file;
          if (access(path.c_str(), R_OK) == 0)
            if (void* library = open_library(path)) return library;
        }
    for (const std::string& file : file_names(family))
      if (void* library = open_library(file)) return library;
  }
  const std::string family = launcher.family ? name(*launcher.family) : "MPI";
  throw CommError("this rank was started by " + launcher.name + " but no " + family + " library was found",
                  "pip install 'dlrun[mpi]' brings one, or name the site's by DL_COMM_MPI_LIBRARY=/path/to/libmpi.so");
}

bool fit(MpiFamily launcher, MpiFamily library) {
  if (launcher == library) return true;
  return launcher == MpiFamily::mpich && library == MpiFamily::standard_abi;
}

}  // namespace

Mpi& load_mpi(const Launcher& launcher, const std::string& named, const std::string& prefix) {
  Loaded& one = loaded();
  const std::lock_guard<std::mutex> lock(one.guard);
  if (one.mpi) return *one.mpi;
  void* library = search(launcher, named, prefix);
  const std::string path = path_of(library, named);
  const MpiFamily family = family_of(library, path);
  if (launcher.family && !fit(*launcher.family, family))
    throw CommError("this rank was started by " + launcher.name + " (" + launcher.sign + " is set) but the MPI library is " +
                        name(family) + "'s (" + path + "): every rank would be rank 0 of 1",
                    std::string("start it with the mpiexec of ") + name(family) + ", or name a library of " +
                        name(*launcher.family) + " by DL_COMM_MPI_LIBRARY");
  if (family == MpiFamily::openmpi) one.mpi = bind_openmpi(library);
  else if (family == MpiFamily::standard_abi) one.mpi = bind_standard_abi(library);
  else one.mpi = bind_mpich(library);
  one.path = path;
  return *one.mpi;
}

bool mpi_is_loaded() { return !already_in_process().empty() || dlsym(RTLD_DEFAULT, "MPI_Init_thread") != nullptr; }

const std::string& mpi_path() { return loaded().path; }

}  // namespace dl
