// Kernels for processors with AVX-512 (F, BW, DQ, VL).
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "half_types.h"

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

// Sixteen half numbers at a time, in registers.
typedef __m512 Floats;
constexpr size_t floats = 16;

__m512i lanes(const void* from) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(from))); }
Floats widen(const Half* from) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))); }
Floats widen(const Brain* from) { return _mm512_castsi512_ps(_mm512_slli_epi32(lanes(from), 16)); }
__m256i narrow(Floats value, const Half*) {
  return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
__m256i narrow(Floats value, const Brain*) {
  const __m512i bits = _mm512_castps_si512(value), high = _mm512_srli_epi32(bits, 16);
  const __m512i even = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(high, _mm512_set1_epi32(1)));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, even), 16);
  const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet));
}
Floats all(float value) { return _mm512_set1_ps(value); }
void store_halves(void* to, __m256i halves) { _mm256_storeu_si256(static_cast<__m256i*>(to), halves); }
void stream_halves(void* to, __m256i halves) { _mm256_stream_si256(static_cast<__m256i*>(to), halves); }

}  // namespace
}  // namespace dl

#include "half_lines.h"
#include "kernels_body.h"

namespace dl {

const KernelTable& kernels_avx512() {
  static const KernelTable one = table();
  return one;
}

}  // namespace dl
