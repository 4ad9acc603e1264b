#include "process.h"

#include <unistd.h>

#include <cstdlib>

#include "error.h"
#include "launcher.h"
#include "library.h"
#include "now.h"
#include "shm_space.h"
#include "transport_local.h"
#include "transport_mpi.h"

namespace dl {
namespace {

// The one global of dl_comm. Never destroyed: a rank may end at any moment, in any state.
struct Process {
  std::mutex guard;
  std::unique_ptr<Session> session;  // guarded by guard until made
  Mpi* mpi = nullptr;
  pid_t pid = 0;
  bool initialized_mpi = false;
};

Process& process() {
  static Process* one = new Process;
  return *one;
}

void check_size(const Launcher& launcher, int size) {
  if (launcher.size == 0 || launcher.size == size) return;
  throw CommError("asked " + std::to_string(launcher.size) + " ranks, the library sees " + std::to_string(size) + ": " +
                      launcher.name + " started this rank, but " + mpi_path() + " does not understand it",
                  "use the mpiexec that belongs to this library, or name its library by DL_COMM_MPI_LIBRARY; under srun "
                  "choose --mpi=pmi2 for MPICH and --mpi=pmix for Open MPI");
}

std::unique_ptr<Transport> find_world(Process& here, const Settings& settings, const std::string& named,
                                      const std::string& prefix) {
  const Launcher launcher = find_launcher([](const char* variable) { return std::getenv(variable); });
  const bool alone = launcher.none() || launcher.size == 1;
  if (alone && !mpi_is_loaded()) return std::move(local_transports(1, settings.timeout_s).front());
  Mpi& mpi = load_mpi(launcher, named.empty() ? settings.mpi_library : named, prefix);
  if (mpi.finalized())
    throw CommError("MPI has been finalized in this process", "initialise dl_comm before MPI_Finalize");
  if (!mpi.initialized()) {
    if (alone) return std::move(local_transports(1, settings.timeout_s).front());
    if (mpi.family() == MpiFamily::mpich) warn_of_too_little_shm(std::getenv);
    mpi.init();
    here.initialized_mpi = true;
  }
  here.mpi = &mpi;
  check_size(launcher, mpi.size(mpi.world()));
  return mpi_transport(mpi, settings.timeout_s);
}

// `dlrun launch` asks by a signal which call a rank is in, and reads the answer in the run's folder.
void answer_launch() {
  const char* folder = std::getenv("DLRUN_RUN_DIR");
  const char* rank = std::getenv("DLRUN_RANK");
  const char* signal = std::getenv("DLRUN_STACK_SIGNAL");
  if (folder == nullptr || rank == nullptr || signal == nullptr) return;
  tell_calls_on(std::atoi(signal), (std::string(folder) + "/rank-" + rank + ".call").c_str());
}

}  // namespace

Session& join(const std::string& mpi_library, const std::string& prefix) {
  Process& here = process();
  const std::lock_guard<std::mutex> lock(here.guard);
  if (here.session) {
    if (here.session->finalized())
      throw CommError("dl_comm has been finalized and cannot be initialised again", "finalize is the last call of a rank");
    return *here.session;
  }
  Settings settings = read_settings([](const char* variable) { return std::getenv(variable); });
  settings.prefix = prefix;
  auto world = find_world(here, settings, mpi_library, prefix);
  here.session = std::make_unique<Session>(std::move(world), std::move(settings));
  here.pid = getpid();
  if (here.mpi != nullptr && here.mpi->family() == MpiFamily::mpich) unlink_segments_of_mpich();
  answer_launch();
  return *here.session;
}

Session& the_session() {
  if (!process().session) throw CommError("dl_comm has not been initialised", "call init first");
  return *process().session;
}

bool has_joined() { return process().session != nullptr; }

void leave(bool blocking) {
  Process& here = process();
  if (!here.session || getpid() != here.pid) return;
  here.session->finalize(blocking);
  if (blocking && here.initialized_mpi && here.mpi != nullptr && !here.mpi->finalized()) here.mpi->finalize();
}

void abort_job(int code) {
  Process& here = process();
  if (here.mpi == nullptr || (here.pid != 0 && getpid() != here.pid)) return;
  if (here.mpi->initialized() && !here.mpi->finalized()) here.mpi->abort(code);
}

void mpi_allreduce(float* data, int count) {
  if (process().mpi == nullptr) throw CommError("no MPI is loaded", "start this under mpiexec");
  process().mpi->allreduce_float_sum(data, count, process().mpi->world());
}

std::string mpi_description() {
  return process().mpi == nullptr ? "" : process().mpi->version() + " (" + mpi_path() + ")";
}

}  // namespace dl
