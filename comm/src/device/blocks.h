// Sums of floats that are formed on the GPUs, block by block: a block is widened (half types to float32) into scratch
// memory, summed over the neighbours so that each has a slice, carried over the nodes by the host where there are
// several, shared, and narrowed into the arrays again, divided and rounded once:
//
//   stream  widen 0, sum 0 | widen 1, sum 1 | share 0, narrow 0 | widen 2, sum 2 | share 1, narrow 1 | ...
//   host                   | carry 0        | carry 1                            | carry 2
//
// Two blocks of scratch memory serve, one for the even and one for the odd blocks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "device/copier.h"
#include "device/neighbours.h"
#include "element.h"
#include "flat.h"
#include "settings.h"

namespace dl {

class Blocks {
 public:
  // Bytes of the scratch memory.
  static std::size_t footprint(const Settings& settings) { return 2 * block_bytes(settings); }

  // What floats it sums: all there are, where the team does not sum in double.
  static bool sums(Dtype dtype, Op op, int precision);

  Blocks(const Gpu& gpu, const Settings& settings, Neighbours& neighbours, Cuda::Pointer scratch);

  // The cut of these arrays into blocks. `slice` is this rank's part of a block, and lies in the scratch memory.
  struct Block {
    const Flat& flat;
    std::size_t first, n;  // elements
    Cuda::Pointer at;
    std::size_t each;      // numbers of a slice
    bool wide;             // float64
    Buffer slice;          // may hold fewer than `each`, at the end
  };
  std::deque<Block> cut(const Flat& flat, std::size_t blocks_before) const;

  // Enqueues: the block's slice is its sum / from the slices to the arrays.
  void sum(Cuda::Stream stream, const Block& block);
  void finish(Cuda::Stream stream, const Block& block, double divisor);

 private:
  // Enough of it that the ranks meet seldom, and little beside the memory of a GPU.
  static std::size_t block_bytes(const Settings& settings) { return std::min<std::size_t>(32 * settings.gpu_chunk_kb, 32 << 10) << 10; }

  Copier copier_;
  Neighbours& neighbours_;
  Cuda::Pointer scratch_;
  std::size_t bytes_;
};

}  // namespace dl
