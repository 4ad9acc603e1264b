// The module that runs on the GPU (kernels.cc), and what its functions take.
#pragma once

#include <cstdint>

#include "device/cuda.h"

namespace dl {

extern const char* const kernels;

inline constexpr unsigned most_pieces = 120;  // of one launch of dl_move_pieces: its parameters take at most 4 KB
inline constexpr unsigned most_summed = 64;   // ranks of one launch of dl_sum_ranks
inline constexpr unsigned threads_of_a_block = 256;

// dl_move_pieces: the first parameter, and the four after the dense stretch's address.
struct PieceTable {
  Cuda::Pointer at[most_pieces];
  std::uint32_t start[most_pieces + 1];
};
struct Move {
  enum Kind : std::uint32_t { bytes, twos, fours, float16, bfloat16, float32, float64 };
  std::uint32_t back = 0, kind = bytes, array_shift = 0, dense_shift = 0;
  double divisor = 1.0;
};

// dl_sum_ranks: the first parameter.
struct RankTable {
  Cuda::Pointer at[most_summed];
};

}  // namespace dl
