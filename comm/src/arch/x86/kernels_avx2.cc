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

}  // namespace
}  // namespace dl

#include "stream.h"

namespace dl {
namespace {

// A line of 16 half numbers at a time, in two registers of float32: Half the first and the last eight, Brain the even
// and the odd ones, which takes one instruction each.
typedef __m256 Floats;
typedef __m256i Halves;
struct Pair {
  Floats one, two;
};

Floats all(float value) { return _mm256_set1_ps(value); }
Pair widen(const Half* from) {
  const auto* at = reinterpret_cast<const __m128i*>(from);
  return {_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at + 1))};
}
Pair widen(const Brain* from) {
  const __m256i line = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256i odd = _mm256_and_si256(line, _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(line, 16)), _mm256_castsi256_ps(odd)};
}
Halves narrow(const Pair& value, const Half*) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return _mm256_set_m128i(_mm256_cvtps_ph(value.two, nearest), _mm256_cvtps_ph(value.one, nearest));
}
// Upper halves, plus 1 where the lower half is more than 0x8000, or is 0x8000 and the upper one odd.
Halves narrow(const Pair& value, const Brain*) {
  constexpr int odd = 0xaa;
  const __m256i one = _mm256_castps_si256(value.one), two = _mm256_castps_si256(value.two);
  const __m256i upper = _mm256_blend_epi16(_mm256_srli_epi32(one, 16), two, odd);
  const __m256i lower = _mm256_blend_epi16(one, _mm256_slli_epi32(two, 16), odd);
  const __m256i least = _mm256_sub_epi16(_mm256_set1_epi16(static_cast<short>(0x8001)),
                                         _mm256_and_si256(upper, _mm256_set1_epi16(1)));
  const __m256i up = _mm256_cmpeq_epi16(_mm256_max_epu16(lower, least), lower);  // -1 where lower >= least
  const __m256i rounded = _mm256_sub_epi16(upper, up);
  if (_mm256_movemask_ps(_mm256_cmp_ps(value.one, value.two, _CMP_UNORD_Q)) == 0) return rounded;
  const __m256i nan_one = _mm256_castps_si256(_mm256_cmp_ps(value.one, value.one, _CMP_UNORD_Q));
  const __m256i nan_two = _mm256_castps_si256(_mm256_cmp_ps(value.two, value.two, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi16(0x40));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_blend_epi16(nan_one, nan_two, odd));
}
void store_halves(void* to, Halves halves) { _mm256_storeu_si256(static_cast<__m256i*>(to), halves); }
void stream_halves(void* to, Halves halves) { _mm256_stream_si256(static_cast<__m256i*>(to), halves); }

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
