// A block of elements, from the type in memory to that of the accumulator and back. A part of kernels_body.h, which says
// what is defined before it and why nothing here is shared.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "half_types.h"

namespace dl {
namespace {

constexpr size_t block = 1024;  // elements: a block of accumulators stays in the first cache

template <class T, class A>
void load(A* acc, const T* in, size_t n) {
  for (size_t i = 0; i < n; ++i) acc[i] = static_cast<A>(in[i]);
}
template <class T, class A>
void store(T* out, const A* acc, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<T>(acc[i]);
}

// bfloat16 is the upper half of a float32; rounding is to nearest, ties to even, and a NaN stays one.
void load(float* acc, const Brain* in, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(in[i].bits) << 16;
    memcpy(&acc[i], &bits, sizeof bits);
  }
}
void store(Brain* out, const float* acc, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    memcpy(&bits, &acc[i], sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;
    out[i].bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
  }
}
void load(float* acc, const Half* in, size_t n) { half_to_float(acc, &in->bits, n); }
void store(Half* out, const float* acc, size_t n) { float_to_half(&out->bits, acc, n); }

// Half types into doubles go through float32: exact on the way in; on the way out the double is rounded to odd first,
// so that the two roundings give what one would.
float round_to_odd(double value) {
  const float near = static_cast<float>(value);
  if (static_cast<double>(near) == value || near != near || value != value) return near;
  uint32_t bits;
  memcpy(&bits, &near, sizeof bits);
  if ((bits & 0x7fffffffu) == 0x7f800000u) return near;
  const double magnitude = value < 0 ? -value : value, nearest = near < 0 ? -static_cast<double>(near) : near;
  if (nearest > magnitude) bits -= 1;
  bits |= 1u;
  float odd;
  memcpy(&odd, &bits, sizeof odd);
  return odd;
}
template <class H>
void load_wide(double* acc, const H* in, size_t n) {
  float near[block];
  load(near, in, n);
  for (size_t i = 0; i < n; ++i) acc[i] = static_cast<double>(near[i]);
}
template <class H>
void store_wide(H* out, const double* acc, size_t n) {
  float near[block];
  for (size_t i = 0; i < n; ++i) near[i] = round_to_odd(acc[i]);
  store(out, near, n);
}
void load(double* acc, const Half* in, size_t n) { load_wide(acc, in, n); }
void load(double* acc, const Brain* in, size_t n) { load_wide(acc, in, n); }
void store(Half* out, const double* acc, size_t n) { store_wide(out, acc, n); }
void store(Brain* out, const double* acc, size_t n) { store_wide(out, acc, n); }

}  // namespace
}  // namespace dl
