// The kernels, written once. Each kernels_*.cc defines how its processor converts half types and streams to memory
// (half_to_float, float_to_half, sum_halves, stream_bytes, stream_end, stream_line, line_bytes), includes this file,
// and is compiled with that processor's flags.
//
// Everything is in an anonymous namespace, and nothing of the standard library with a body is used: a function that
// this file shared with others would be merged by the linker, and then run on processors that lack its instructions.

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels_convert.h"
#include "reducer.h"

namespace dl {
namespace {

// A NaN on any rank wins min and max, as in NumPy.
struct Sum {
  static constexpr Op op = Op::sum;
  template <class A> static A of(A a, A b) { return a + b; }
};
struct Min {
  static constexpr Op op = Op::min;
  template <class A> static A of(A a, A b) { return a < b || a != a ? a : b; }
};
struct Max {
  static constexpr Op op = Op::max;
  template <class A> static A of(A a, A b) { return a > b || a != a ? a : b; }
};
struct Product {
  static constexpr Op op = Op::prod;
  template <class A> static A of(A a, A b) { return a * b; }
};

template <class O, class A>
void combine_block(A* __restrict acc, const A* __restrict more, size_t n) {
  for (size_t i = 0; i < n; ++i) acc[i] = O::of(acc[i], more[i]);
}

// The same type in memory and in the accumulator needs no conversion of its own.
template <class O, class T>
void fold(T* __restrict acc, const T* __restrict in, size_t n) { combine_block<O>(acc, in, n); }
template <class O, class T, class A>
void fold(A* __restrict acc, const T* __restrict in, size_t n) {
  A more[block];
  load(more, in, n);
  combine_block<O>(acc, more, n);
}

template <class O, class T, class A>
void partial_block(A* acc, const void* const* in, int n_in, size_t first, size_t n) {
  load(acc, static_cast<const T*>(in[0]) + first, n);
  for (int j = 1; j < n_in; ++j) fold<O>(acc, static_cast<const T*>(in[j]) + first, n);
}

// Integers are divided towards zero. By a power of two they are shifted, negative ones after adding what makes a shift,
// which rounds down, round up.
void divide(int64_t* acc, size_t n, double divisor) {
  const int64_t by = static_cast<int64_t>(divisor);
  if (by == 1) return;
  if ((by & (by - 1)) != 0) {
    for (size_t i = 0; i < n; ++i) acc[i] = acc[i] / by;
    return;
  }
  const int shift = __builtin_ctzll(static_cast<unsigned long long>(by));
  for (size_t i = 0; i < n; ++i) acc[i] = (acc[i] + ((acc[i] >> 63) & (by - 1))) >> shift;
}

// A power of two divides exactly by its reciprocal; other divisors are divided by, which rounds once.
template <class A>
void divide(A* acc, size_t n, double divisor) {
  if (divisor == 1) return;
  const A by = static_cast<A>(divisor);
  const uint64_t whole = static_cast<uint64_t>(divisor);
  if ((whole & (whole - 1)) == 0) {
    const A reciprocal = static_cast<A>(1) / by;
    for (size_t i = 0; i < n; ++i) acc[i] = acc[i] * reciprocal;
  } else {
    for (size_t i = 0; i < n; ++i) acc[i] = acc[i] / by;
  }
}

template <class T, class A>
void finish_block(void* const* out, int n_out, int n_stream, A* acc, size_t first, size_t n, double divisor) {
  divide(acc, n, divisor);
  T made[block];
  store(made, acc, n);
  for (int j = 0; j < n_out; ++j) {
    T* to = static_cast<T*>(out[j]) + first;
    if (j < n_stream) stream_bytes(to, made, n * sizeof(T));
    else memcpy(to, made, n * sizeof(T));
  }
}

template <class O, class T, class A>
void partial(void* acc, const void* const* in, int n_in, size_t n) {
  for (size_t i = 0; i < n; i += block)
    partial_block<O, T>(static_cast<A*>(acc) + i, in, n_in, i, n - i < block ? n - i : block);
}

template <class O, class A>
void combine(void* acc, const void* more, size_t n) {
  combine_block<O>(static_cast<A*>(acc), static_cast<const A*>(more), n);
}

template <class T, class A>
void finish(void* const* out, int n_out, int n_stream, const void* acc, size_t n, double divisor) {
  for (size_t i = 0; i < n; i += block) {
    const size_t some = n - i < block ? n - i : block;
    A held[block];
    memcpy(held, static_cast<const A*>(acc) + i, some * sizeof(A));
    finish_block<T>(out, n_out, n_stream, held, i, some, divisor);
  }
  if (n_stream > 0) stream_end();
}

// Sums of float32 and float64, the bulk of all work, in one pass through registers: reading, adding and writing overlap.
// Does whole lines of memory from element `first` on, and returns the element after the last that it did. The bits are
// those of the blocks: the same additions in the same order.
template <class T, bool divides, int ins>
size_t sum_lines(void* const* out, int n_out, int n_stream, const void* const* in, int n_in, size_t first, size_t n,
                 T by) {
  typedef T Line __attribute__((vector_size(line_bytes), aligned(alignof(T)), may_alias));
  constexpr size_t step = line_bytes / sizeof(T);
  const int inputs = ins > 0 ? ins : n_in;
  size_t i = first;
  for (; i + step <= n; i += step) {
    Line acc = *reinterpret_cast<const Line*>(static_cast<const T*>(in[0]) + i);
    for (int j = 1; j < inputs; ++j) acc += *reinterpret_cast<const Line*>(static_cast<const T*>(in[j]) + i);
    if (divides) acc /= by;
    else acc *= by;
    for (int j = 0; j < n_stream; ++j) stream_line(static_cast<T*>(out[j]) + i, &acc);
    for (int j = n_stream; j < n_out; ++j) *reinterpret_cast<Line*>(static_cast<T*>(out[j]) + i) = acc;
  }
  return i;
}

template <class T>
size_t sum_lines(void* const* out, int n_out, int n_stream, const void* const* in, int n_in, size_t n, double divisor) {
  const uintptr_t offset = n_stream > 0 ? reinterpret_cast<uintptr_t>(out[0]) % line_bytes : 0;
  for (int j = 1; j < n_stream; ++j)
    if (reinterpret_cast<uintptr_t>(out[j]) % line_bytes != offset) return 0;
  if (offset != 0) return 0;
  const uint64_t whole = static_cast<uint64_t>(divisor);
  if ((whole & (whole - 1)) != 0)
    return sum_lines<T, true, 0>(out, n_out, n_stream, in, n_in, 0, n, static_cast<T>(divisor));
  const T by = static_cast<T>(1 / divisor);
  if (n_in == 2) return sum_lines<T, false, 2>(out, n_out, n_stream, in, n_in, 0, n, by);
  return sum_lines<T, false, 0>(out, n_out, n_stream, in, n_in, 0, n, by);
}

// How many elements at the front were done by lines; other types and operations have none.
template <class O, class T, class A>
struct Lines {
  static size_t done(void* const*, int, int, const void* const*, int, size_t, double) { return 0; }
};
template <>
struct Lines<Sum, float, float> {
  static constexpr auto done = sum_lines<float>;
};
template <>
struct Lines<Sum, Half, float> {
  static constexpr auto done = sum_halves<Half>;
};
template <>
struct Lines<Sum, Brain, float> {
  static constexpr auto done = sum_halves<Brain>;
};
template <>
struct Lines<Sum, double, double> {
  static constexpr auto done = sum_lines<double>;
};

template <class O, class T, class A>
void reduce(void* const* out, int n_out, int n_stream, const void* const* in, int n_in, size_t n, double divisor) {
  for (size_t i = Lines<O, T, A>::done(out, n_out, n_stream, in, n_in, n, divisor); i < n; i += block) {
    const size_t some = n - i < block ? n - i : block;
    A held[block];
    partial_block<O, T>(held, in, n_in, i, some);
    finish_block<T>(out, n_out, n_stream, held, i, some, divisor);
  }
  if (n_stream > 0) stream_end();
}

constexpr Dtype dtype_of(float) { return Dtype::float32; }
constexpr Dtype dtype_of(double) { return Dtype::float64; }
constexpr Dtype dtype_of(int64_t) { return Dtype::int64; }

template <class O, class T, class A>
Reducer make() {
  return {sizeof(T), sizeof(A), dtype_of(A()), O::op, partial<O, T, A>, combine<O, A>, finish<T, A>, reduce<O, T, A>};
}

template <class T, class A>
void row(Reducer* of) {
  of[0] = make<Sum, T, A>();
  of[1] = make<Min, T, A>();
  of[2] = make<Max, T, A>();
  of[3] = make<Product, T, A>();
}

void copy_streamed(void* to, const void* from, size_t bytes) {
  stream_bytes(to, from, bytes);
  stream_end();
}

KernelTable table() {
  KernelTable t;
  t.copy_past_caches = copy_streamed;
  for (int level = 0; level < 2; ++level) {
    Reducer(*of)[4] = t.of[level];
    row<double, double>(of[static_cast<int>(Dtype::float64)]);
    row<int8_t, int64_t>(of[static_cast<int>(Dtype::int8)]);
    row<int16_t, int64_t>(of[static_cast<int>(Dtype::int16)]);
    row<int32_t, int64_t>(of[static_cast<int>(Dtype::int32)]);
    row<int64_t, int64_t>(of[static_cast<int>(Dtype::int64)]);
    row<uint8_t, int64_t>(of[static_cast<int>(Dtype::uint8)]);
  }
  row<float, float>(t.of[0][static_cast<int>(Dtype::float32)]);
  row<Half, float>(t.of[0][static_cast<int>(Dtype::float16)]);
  row<Brain, float>(t.of[0][static_cast<int>(Dtype::bfloat16)]);
  row<float, double>(t.of[1][static_cast<int>(Dtype::float32)]);
  row<Half, double>(t.of[1][static_cast<int>(Dtype::float16)]);
  row<Brain, double>(t.of[1][static_cast<int>(Dtype::bfloat16)]);
  return t;
}

}  // namespace
}  // namespace dl
