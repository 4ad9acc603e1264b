// Sums of the half types in one pass through registers, as sum_lines in kernels_body.h does float32: widened to float32,
// added in rank order, rounded once. The including file has defined Floats, Halves, Pair, widen, narrow, all and the stores.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace dl {
namespace {

template <class H, bool divides>
size_t sum_halves(void* const* out, int n_out, int n_stream, const void* const* in, int n_in, size_t n, float by) {
  constexpr size_t line = sizeof(Halves) / sizeof(H);
  const Floats factor = all(by);
  size_t i = 0;
  for (; i + line <= n; i += line) {
    Pair acc = widen(static_cast<const H*>(in[0]) + i);
    for (int j = 1; j < n_in; ++j) {
      const Pair more = widen(static_cast<const H*>(in[j]) + i);
      acc.one += more.one;
      acc.two += more.two;
    }
    acc.one = divides ? acc.one / factor : acc.one * factor;
    acc.two = divides ? acc.two / factor : acc.two * factor;
    const Halves halves = narrow(acc, static_cast<const H*>(nullptr));
    for (int j = 0; j < n_stream; ++j) stream_halves(static_cast<H*>(out[j]) + i, halves);
    for (int j = n_stream; j < n_out; ++j) store_halves(static_cast<H*>(out[j]) + i, halves);
  }
  return i;
}

// Returns how many elements were done; none if a streamed output does not begin at a whole line.
template <class H>
size_t sum_halves(void* const* out, int n_out, int n_stream, const void* const* in, int n_in, size_t n,
                  double divisor) {
  for (int j = 0; j < n_stream; ++j)
    if (reinterpret_cast<uintptr_t>(out[j]) % sizeof(Halves) != 0) return 0;
  const uint64_t whole = static_cast<uint64_t>(divisor);
  if ((whole & (whole - 1)) != 0)
    return sum_halves<H, true>(out, n_out, n_stream, in, n_in, n, static_cast<float>(divisor));
  return sum_halves<H, false>(out, n_out, n_stream, in, n_in, n, static_cast<float>(1 / divisor));
}

}  // namespace
}  // namespace dl
