// Copies between many arrays on a GPU and one dense stretch: of pinned memory, or of the GPU's own.
//
// Few arrays are copied to pinned memory by the GPU's copy engines, one call for each. Many small ones (biases, scales)
// would take hundreds of calls, each dearer than its bytes: one kernel copies up to 120 of them.
#pragma once

#include <cstddef>

#include "device/cuda.h"
#include "device/kernels.h"
#include "flat.h"

namespace dl {

class Copier {
 public:
  // The GPU's context is current. `pinned` is where the pinned memory begins, if there is any. Where the driver does not
  // take the kernel, every array is copied by itself.
  explicit Copier(const Gpu& gpu, char* pinned = nullptr);

  // Elements [first, first + n) of arrays on the GPU to pinned memory / back. Enqueued on `stream`.
  void gather(Cuda::Stream stream, const Flat& flat, std::size_t first, std::size_t n, char* dense);
  void scatter(Cuda::Stream stream, const Flat& flat, std::size_t first, std::size_t n, char* dense);

  // Floats to the GPU's own dense memory, half types as float32 / back, divided, and rounded once. Only where there is
  // the kernel.
  bool has_kernel() const { return kernel_ != nullptr; }
  void widen(Cuda::Stream stream, const Flat& flat, std::size_t first, std::size_t n, Cuda::Pointer dense);
  void narrow(Cuda::Stream stream, const Flat& flat, std::size_t first, std::size_t n, Cuda::Pointer dense, double divisor);

 private:
  void copy(Cuda::Stream stream, const Flat& flat, std::size_t first, std::size_t n, char* dense, bool back);
  void by_kernel(Cuda::Stream stream, const Flat& flat, std::size_t first, std::size_t n, Cuda::Pointer dense,
                 Move how, unsigned most_blocks);

  const Cuda& cuda_;
  char* pinned_;
  Cuda::Pointer mapped_ = 0;       // where the GPU sees it
  Cuda::Kernel kernel_ = nullptr;  // nullptr: the driver refused it
};

}  // namespace dl
