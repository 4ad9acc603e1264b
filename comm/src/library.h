// Finds and loads the MPI library that this process runs under.
//
// In this order: the library that the caller or DL_COMM_MPI_LIBRARY names; the one that the process has loaded already
// (mpi4py, or a C program linked with MPI); the one beside the launcher that started this process; the one under
// `prefix` (a Python environment's); the system's. The family of the last three is the launcher's.
#pragma once

#include <string>

#include "launcher.h"
#include "mpi.h"

namespace dl {

// Returns the one Mpi of this process, loading it at the first call. Throws CommError if none is found, or if its
// family is not that of `launcher`: such ranks would each be rank 0 of 1.
Mpi& load_mpi(const Launcher& launcher, const std::string& named, const std::string& prefix);

// Whether some MPI library is in the process already.
bool mpi_is_loaded();

// The path of the library that load_mpi loaded.
const std::string& mpi_path();

}  // namespace dl
