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

}  // namespace
}  // namespace dl

#include "stream.h"

namespace dl {
namespace {

// A line of 32 half numbers at a time, in two registers of float32: Half the first and the last sixteen, Brain the even
// and the odd ones, which takes one instruction each.
typedef __m512 Floats;
typedef __m512i Halves;
struct Pair {
  Floats one, two;
};

Floats all(float value) { return _mm512_set1_ps(value); }
Pair widen(const Half* from) {
  const auto* at = reinterpret_cast<const __m256i*>(from);
  return {_mm512_cvtph_ps(_mm256_loadu_si256(at)), _mm512_cvtph_ps(_mm256_loadu_si256(at + 1))};
}
Pair widen(const Brain* from) {
  const __m512i line = _mm512_loadu_si512(from);
  const __m512i odd = _mm512_and_si512(line, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(line, 16)), _mm512_castsi512_ps(odd)};
}
Halves narrow(const Pair& value, const Half*) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(value.one, nearest)),
                            _mm512_cvtps_ph(value.two, nearest), 1);
}
// Upper halves, plus 1 where the lower half is more than 0x8000, or is 0x8000 and the upper one odd.
Halves narrow(const Pair& value, const Brain*) {
  constexpr __mmask32 odd = 0xaaaaaaaau;
  const __m512i one = _mm512_castps_si512(value.one), two = _mm512_castps_si512(value.two);
  const __m512i upper = _mm512_mask_blend_epi16(odd, _mm512_srli_epi32(one, 16), two);
  const __m512i lower = _mm512_mask_blend_epi16(odd, one, _mm512_slli_epi32(two, 16));
  const __m512i tie = _mm512_sub_epi16(_mm512_set1_epi16(static_cast<short>(0x8000)),
                                       _mm512_and_si512(upper, _mm512_set1_epi16(1)));
  const __mmask32 up = _mm512_cmpgt_epu16_mask(lower, tie);
  const __m512i rounded = _mm512_mask_add_epi16(upper, up, upper, _mm512_set1_epi16(1));
  if (_mm512_cmp_ps_mask(value.one, value.two, _CMP_UNORD_Q) == 0) return rounded;
  const __mmask16 nan_one = _mm512_cmp_ps_mask(value.one, value.one, _CMP_UNORD_Q);
  const __mmask16 nan_two = _mm512_cmp_ps_mask(value.two, value.two, _CMP_UNORD_Q);
  const __m512i nan = _mm512_mask_blend_epi16(odd, _mm512_maskz_set1_epi32(nan_one, -1), _mm512_maskz_set1_epi32(nan_two, -1));
  const __m512i quiet = _mm512_or_si512(upper, _mm512_set1_epi16(0x40));
  return _mm512_mask_blend_epi16(_mm512_movepi16_mask(nan), rounded, quiet);
}
void store_halves(void* to, Halves halves) { _mm512_storeu_si512(to, halves); }
void stream_halves(void* to, Halves halves) { _mm512_stream_si512(static_cast<__m512i*>(to), halves); }

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
