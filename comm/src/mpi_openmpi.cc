// Open MPI's binary interface (4.x and 5.x): a handle is the address of an object that the library exports.
#include "mpi_of.h"

namespace dl {

std::unique_ptr<Mpi> bind_openmpi(void* library) {
  auto object = [library](const char* name) {
    void* address = dlsym(library, name);
    if (address == nullptr) throw CommError(std::string("the Open MPI library has no object ") + name);
    return address;
  };
  MpiConstants<void*> is{};
  is.family = MpiFamily::openmpi;
  is.comm_world = object("ompi_mpi_comm_world");
  is.byte_type = object("ompi_mpi_byte");
  is.float_type = object("ompi_mpi_float");
  is.double_type = object("ompi_mpi_double");
  is.int64_type = object("ompi_mpi_int64_t");
  is.sum = object("ompi_mpi_op_sum");
  is.errors_return = object("ompi_mpi_errors_return");
  is.in_place = reinterpret_cast<void*>(1);
  is.status_ignore = nullptr;
  is.thread_multiple = 3;
  return std::make_unique<MpiOf<void*>>(library, is);
}

}  // namespace dl
