#include "shm_space.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <limits>

namespace dl {
namespace {

constexpr std::size_t each = 6u << 20;  // MPICH 5.0 over UCX was seen to take 5.3 MiB a rank

int number(const std::function<const char*(const char*)>& look, std::initializer_list<const char*> variables, int none) {
  for (const char* variable : variables)
    if (const char* text = look(variable)) return std::atoi(text);
  return none;
}

// What /dev/shm has left; without a limit, or without /dev/shm, the largest number there is.
std::size_t room_in_shared_memory() {
  struct statvfs disk;
  if (statvfs("/dev/shm", &disk) != 0 || disk.f_blocks == 0) return std::numeric_limits<std::size_t>::max();
  return static_cast<std::size_t>(disk.f_bavail) * disk.f_frsize;
}

}  // namespace

std::string too_little_shm(int local_size, std::size_t free) {
  const std::size_t needed = static_cast<std::size_t>(local_size) * each;
  if (local_size < 2 || free >= needed) return "";
  return "dl_comm: /dev/shm has " + std::to_string(free >> 20) + " MiB left; MPICH takes about " +
         std::to_string(needed >> 20) + " MiB of it for " + std::to_string(local_size) +
         " ranks, and dies of a bus error where it finds less. A container gets more by --shm-size=1g.\n";
}

void warn_of_too_little_shm(const std::function<const char*(const char*)>& look) {
  const std::string text = too_little_shm(number(look, {"MPI_LOCALNRANKS", "DLRUN_LOCAL_SIZE"}, 1), room_in_shared_memory());
  if (text.empty()) return;
  if (number(look, {"MPI_LOCALRANKID", "DLRUN_LOCAL_RANK"}, 0) == 0) std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
  usleep(500'000);
}

void unlink_segments_of_mpich() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t at = line.find("/dev/shm/mpich_shm_");
    if (at != std::string::npos) unlink(line.c_str() + at);  // where another rank was first, its line ends in " (deleted)"
  }
}

}  // namespace dl
