// Kernels for processors with AVX2 and F16C.
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace dl {
namespace {

void half_to_float(float* out, const uint16_t* in, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
  for (; i < n; ++i) out[i] = _cvtsh_ss(in[i]);
}

void float_to_half(uint16_t* out, const float* in, size_t n) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(in + i), nearest));
  for (; i < n; ++i) out[i] = _cvtss_sh(in[i], nearest);
}

constexpr size_t line_bytes = sizeof(__m256i);

void stream_line(void* to, const void* from) {
  _mm256_stream_si256(static_cast<__m256i*>(to), _mm256_loadu_si256(static_cast<const __m256i*>(from)));
}

void stream_bytes(void* to, const void* from, size_t bytes) {
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  size_t head = (line_bytes - reinterpret_cast<uintptr_t>(out) % line_bytes) % line_bytes;
  if (head > bytes) head = bytes;
  memcpy(out, in, head);
  size_t i = head;
  for (; i + line_bytes <= bytes; i += line_bytes)
    stream_line(out + i, in + i);
  memcpy(out + i, in + i, bytes - i);
}

// Streamed bytes become visible to other ranks in order with what follows.
void stream_end() { _mm_sfence(); }

}  // namespace
}  // namespace dl

#include "kernels_body.h"

namespace dl {

const KernelTable& kernels_avx2() {
  static const KernelTable one = table();
  return one;
}

}  // namespace dl
