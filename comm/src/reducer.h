// How numbers combine: one table of plain functions per processor, chosen once at run time.
//
// Elements (what arrays hold) are combined in accumulators (what sums are carried in: float32 for the half types, double
// at precision level 1, int64 for integers). Ranks are always combined in the order in which they are listed, one
// element at a time, so every processor and every split of the work gives the same bits.
#pragma once

#include <cstddef>

#include "element.h"

namespace dl {

struct Reducer {
  std::size_t width;      // bytes of an element
  std::size_t acc_width;  // bytes of an accumulator
  Dtype acc_type;         // float32, float64 or int64
  Op op;                  // sum for the mean

  // acc[k] = in[0][k] op in[1][k] op ... ; n elements
  void (*partial)(void* acc, const void* const* in, int n_in, std::size_t n);
  // acc[k] = acc[k] op more[k]
  void (*combine)(void* acc, const void* more, std::size_t n);
  // out[j][k] = acc[k] / divisor for every j. The first n_stream outputs are written past the caches.
  void (*finish)(void* const* out, int n_out, int n_stream, const void* acc, std::size_t n, double divisor);
  // partial and finish at once. An output may be one of the inputs.
  void (*reduce)(void* const* out, int n_out, int n_stream, const void* const* in, int n_in, std::size_t n,
                 double divisor);
};

// Copies bytes past the caches: for memory that another core has read, and will read again. A plain store would first
// have to take the line away from that core, which costs ten times as much as the copy.
void copy_past_caches(void* to, const void* from, std::size_t bytes);

// The functions for arrays of `dtype` under `op` (mean is sum with a divisor) at precision `level` (0 or 1).
const Reducer& reducer(Dtype dtype, Op op, int level);

// "avx512", "avx2" or "portable": the kernels in use. A test may choose others by name; false: not on this processor.
const char* kernels_in_use();
bool use_kernels(const char* name);

// One table per file kernels_*.cc: [level][dtype][op without mean].
struct KernelTable {
  Reducer of[2][dtype_count][4];
  void (*copy_past_caches)(void* to, const void* from, std::size_t bytes);
};
const KernelTable& kernels_portable();
const KernelTable& kernels_avx2();
const KernelTable& kernels_avx512();

}  // namespace dl
