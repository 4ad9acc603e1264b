// Ranks whose GPUs reach each other without the host's memory: those of a node, or all that NCCL connects.
//
// A block of float32 or float64 (`wide`) lies at the same place of each rank's scratch memory and is cut into size() slices
// of `each` numbers. Both calls are made by all of these ranks in the same order; they enqueue, on `stream`, and return.
#pragma once

#include <cstddef>

#include "device/cuda.h"

namespace dl {

class Neighbours {
 public:
  virtual ~Neighbours() = default;
  virtual int rank() const = 0;  // which slice is this rank's
  virtual int size() const = 0;

  // This rank's slice becomes the sum of all ranks' / every slice becomes what its rank has.
  virtual void sum_slices(Cuda::Stream stream, Cuda::Pointer block, std::size_t each, bool wide) = 0;
  virtual void share_slices(Cuda::Stream stream, Cuda::Pointer block, std::size_t each, bool wide) = 0;

  // This rank has failed, with what is on `stream`: nobody is to wait for it any longer. Throws nothing.
  virtual void let_go(Cuda::Stream stream) = 0;
};

}  // namespace dl
