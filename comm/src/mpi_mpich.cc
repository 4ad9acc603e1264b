// The MPICH family's binary interface (MPICH, Intel MPI, Cray MPI, MVAPICH): handles are ints with fixed values,
// agreed in the MPICH ABI Compatibility Initiative of 2013.
#include "mpi_of.h"

namespace dl {

std::unique_ptr<Mpi> bind_mpich(void* library) {
  MpiConstants<int> is{};
  is.family = MpiFamily::mpich;
  is.comm_world = 0x44000000;
  is.byte_type = 0x4c00010d;
  is.float_type = 0x4c00040a;
  is.double_type = 0x4c00080b;
  is.int64_type = 0x4c00083a;
  is.sum = 0x58000003;
  is.errors_return = 0x54000001;
  is.in_place = reinterpret_cast<void*>(-1);
  is.status_ignore = reinterpret_cast<void*>(1);
  is.thread_multiple = 3;
  return std::make_unique<MpiOf<int>>(library, is);
}

}  // namespace dl
