// Kernels for processors with AVX2 and F16C.
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "half_types.h"

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

// Eight half numbers at a time, in registers.
typedef __m256 Floats;
constexpr size_t floats = 8;

__m256i lanes(const void* from) { return _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from))); }
Floats widen(const Half* from) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))); }
Floats widen(const Brain* from) { return _mm256_castsi256_ps(_mm256_slli_epi32(lanes(from), 16)); }
__m128i narrow(Floats value, const Half*) {
  return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
__m128i narrow(Floats value, const Brain*) {
  const __m256i bits = _mm256_castps_si256(value), high = _mm256_srli_epi32(bits, 16);
  const __m256i even = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(high, _mm256_set1_epi32(1)));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, even), 16);
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i chosen = _mm256_blendv_epi8(rounded, quiet, nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
}
Floats all(float value) { return _mm256_set1_ps(value); }
void store_halves(void* to, __m128i halves) { _mm_storeu_si128(static_cast<__m128i*>(to), halves); }
void stream_halves(void* to, __m128i halves) { _mm_stream_si128(static_cast<__m128i*>(to), halves); }

}  // namespace
}  // namespace dl

#include "half_lines.h"
#include "kernels_body.h"

namespace dl {

const KernelTable& kernels_avx2() {
  static const KernelTable one = table();
  return one;
}

}  // namespace dl
