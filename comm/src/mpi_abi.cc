// The binary interface that the MPI 5 standard fixes (libmpi_abi.so): handles are pointers with small integer values.
#include "mpi_of.h"

namespace dl {

std::unique_ptr<Mpi> bind_standard_abi(void* library) {
  auto handle = [](std::uintptr_t value) { return reinterpret_cast<void*>(value); };
  MpiConstants<void*> is{};
  is.family = MpiFamily::standard_abi;
  is.comm_world = handle(0x101);
  is.byte_type = handle(0x247);
  is.float_type = handle(0x210);
  is.double_type = handle(0x214);
  is.int64_type = handle(0x258);
  is.sum = handle(0x21);
  is.errors_return = handle(0x143);
  is.in_place = handle(1);
  is.status_ignore = nullptr;
  is.thread_multiple = 4096;
  return std::make_unique<MpiOf<void*>>(library, is);
}

}  // namespace dl
