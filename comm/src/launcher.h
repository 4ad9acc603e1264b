// What started this process, as its environment tells.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "mpi.h"

namespace dl {

struct Launcher {
  std::string name;                 // "Open MPI's mpirun", for messages; empty: none, rank 0 of 1
  std::string sign;                 // the variable that gave it away
  std::optional<MpiFamily> family;  // the family of MPI whose ranks it can start, where that is known
  int size = 0;                     // how many ranks it was asked for; 0: it does not say

  bool none() const { return name.empty(); }
};

// Reads the environment through `look` (getenv's shape). The innermost launcher wins: an mpirun inside a Slurm job
// leaves the batch step's SLURM_PROCID in every rank.
Launcher find_launcher(const std::function<const char*(const char*)>& look);

}  // namespace dl
