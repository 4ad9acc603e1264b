// The session of this process, and its MPI.
#pragma once

#include <string>

#include "session.h"

namespace dl {

// Joins the ranks: finds the launcher, loads MPI if there is one, initialises it if nobody has. A second call returns
// the same session. `prefix`: the Python environment, beside which libmpi is looked for.
Session& join(const std::string& mpi_library, const std::string& prefix);

// The session that join made. Throws CommError if there is none.
Session& the_session();
bool has_joined();

// Leaves. blocking: waits for all ranks, and finalizes MPI if join initialised it. Otherwise goes without a word to MPI.
void leave(bool blocking);

// Ends the whole job at once, if this process is part of one: MPI_Abort. Returns if there is no MPI to do so.
void abort_job(int code);

// For benchmarks: the MPI library's own in-place MPI_Allreduce of floats.
void mpi_allreduce(float* data, int count);

// "MPICH 5.0.2 (/path/libmpi.so.12)"; "" if no MPI is loaded.
std::string mpi_description();

}  // namespace dl
