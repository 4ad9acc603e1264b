// The MPI functions that dl_comm uses, taken from whatever library the process runs under.
//
// MPI is loaded, not linked: the binary interface is frozen for three families, which differ in what a handle is and in
// the values of a few constants. One Mpi object stands for one loaded library; it is never destroyed, since a library
// that has been initialised cannot be unloaded. Handles travel as integers wide enough for all families.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "element.h"

namespace dl {

enum class MpiFamily { mpich, openmpi, standard_abi };
const char* name(MpiFamily family);

class Mpi {
 public:
  using Comm = std::uintptr_t;
  using Request = std::uintptr_t;

  virtual ~Mpi() = default;
  virtual MpiFamily family() const = 0;
  virtual std::string version() = 0;    // may be asked before initialisation
  virtual bool initialized() = 0;
  virtual bool finalized() = 0;
  virtual void init() = 0;              // asks for MPI_THREAD_MULTIPLE
  virtual bool thread_multiple() = 0;   // whether any thread may call at any time
  virtual std::string against_gpu_memory() = 0;  // why messages may not lie on a GPU of CUDA's; "": it says they may
  virtual void finalize() = 0;
  virtual void abort(int code) = 0;

  virtual Comm world() = 0;
  virtual Comm dup(Comm comm) = 0;      // collective; errors on the new one are returned, not fatal
  virtual Comm split(Comm comm, int color, int key) = 0;  // collective
  virtual void free(Comm comm) = 0;
  virtual int rank(Comm comm) = 0;
  virtual int size(Comm comm) = 0;

  // Bytes by the int of MPI: at most 2^31-1 at a time.
  virtual Request isend(const void* data, int bytes, int to, int tag, Comm comm) = 0;
  virtual Request irecv(void* data, int bytes, int from, int tag, Comm comm) = 0;
  virtual bool test(Request& request) = 0;
  virtual void cancel(Request& request) = 0;

  // The communicator of `ranks` of `comm`. Collective over them alone; `tag` keeps concurrent calls apart.
  virtual Comm group(Comm comm, const std::vector<int>& ranks, int tag) = 0;
  // The library's own in-place sum of float32, float64 or int64.
  virtual Request start_sum(void* data, int count, Dtype dtype, Comm comm) = 0;
  // The library's own in-place sum of floats, which benchmarks compare with.
  virtual void allreduce_float_sum(float* data, int count, Comm comm) = 0;
};

// Binds the functions of the library that dlopen gave. Each lives in a file of its own with the family's constants.
std::unique_ptr<Mpi> bind_mpich(void* library);
std::unique_ptr<Mpi> bind_openmpi(void* library);
std::unique_ptr<Mpi> bind_standard_abi(void* library);

}  // namespace dl
