// Kernels for any processor: what the compiler makes of plain loops.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace dl {
namespace {

uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Scaling by 2^112 moves the exponent's bias from 15 to 127, and makes normal numbers of subnormal ones.
void half_to_float(float* out, const uint16_t* in, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t half = in[i];
    const uint32_t sign = (half & 0x8000u) << 16, rest = (half & 0x7fffu) << 13;
    uint32_t bits = bits_of(float_of(rest) * float_of(0x77800000u));
    if ((half & 0x7c00u) == 0x7c00u) bits = rest | 0x7f800000u;  // infinities and NaNs
    out[i] = float_of(sign | bits);
  }
}

// To nearest, ties to even.
void float_to_half(uint16_t* out, const float* in, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = bits_of(in[i]);
    const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) {
      half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    } else if (magnitude >= 0x477ff000u) {
      half = 0x7c00u;  // 65520 and more round to infinity
    } else if (magnitude < 0x38800000u) {
      // Below 2^-14 a half counts in steps of 2^-24: adding 0.5 leaves the rounded count in the low bits.
      half = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
    } else {
      half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    }
    out[i] = static_cast<uint16_t>(sign | half);
  }
}

void stream_bytes(void* to, const void* from, size_t bytes) { memcpy(to, from, bytes); }
void stream_end() {}

constexpr size_t line_bytes = 16;
void stream_line(void* to, const void* from) { memcpy(to, from, line_bytes); }

// The half types go by blocks here.
template <class H>
size_t sum_halves(void* const*, int, int, const void* const*, int, size_t, double) {
  return 0;
}

}  // namespace
}  // namespace dl

#include "kernels_body.h"

namespace dl {

const KernelTable& kernels_portable() {
  static const KernelTable one = table();
  return one;
}

}  // namespace dl
