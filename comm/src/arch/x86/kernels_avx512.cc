// Kernels for processors with AVX-512 (F, BW, DQ, VL).
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace dl {
namespace {

void half_to_float(float* out, const uint16_t* in, size_t n) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16)
    _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i))));
  for (; i < n; ++i) out[i] = _cvtsh_ss(in[i]);
}

void float_to_half(uint16_t* out, const float* in, size_t n) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  size_t i = 0;
  for (; i + 16 <= n; i += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtps_ph(_mm512_loadu_ps(in + i), nearest));
  for (; i < n; ++i) out[i] = _cvtss_sh(in[i], nearest);
}

constexpr size_t line_bytes = sizeof(__m512i);

void stream_line(void* to, const void* from) {
  _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_loadu_si512(static_cast<const __m512i*>(from)));
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

const KernelTable& kernels_avx512() {
  static const KernelTable one = table();
  return one;
}

}  // namespace dl
