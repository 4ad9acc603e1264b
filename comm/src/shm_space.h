// /dev/shm and the MPI library itself, which may die of SIGBUS there without a word: whether it is large enough, and that
// ranks which crash leave nothing in it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace dl {

// One line if `local_size` ranks of MPICH's library are about to find too little room in /dev/shm, which has `free` bytes
// left; else "".
std::string too_little_shm(int local_size, std::size_t free);

// To be called before MPI_Init: says so, once a node, and waits until the launcher has probably read it, since it may
// lose what was said just before a rank dies. `look` has getenv's shape.
void warn_of_too_little_shm(const std::function<const char*(const char*)>& look);

// To be called once all ranks of the node have passed MPI_Init: takes away the names of the segments that MPICH has mapped
// into this process. It would do so itself in MPI_Finalize, which a rank that crashes never reaches: 1 MiB a rank would
// stay behind each time. The memory goes with the last process that has it mapped.
void unlink_segments_of_mpich();

}  // namespace dl
