// AVX2's vector of floats for the kernels written once for all vector tiers (ops/rows-inl.h,
// attention/float-inl.h). Included inside the tier's namespace and target region, after all other headers; so
// no include guard and no includes. Each function is one IEEE operation, so that tiers agree bit for bit.
// Where an operand may be NaN the order of operands matters.

using F32s = __m256;
using Bits = __m256i;
inline constexpr int kLanes = 8;
// Registers for accumulators in a tile of rows x vectors; the rest hold the operands.
inline constexpr int kAccumulators = 12;
inline constexpr int kMaxTileRows = 6;

REDOUBT_INLINE F32s set(float x) { return _mm256_set1_ps(x); }
REDOUBT_INLINE F32s load(const float* x) { return _mm256_loadu_ps(x); }
REDOUBT_INLINE void store(float* to, F32s x) { _mm256_storeu_ps(to, x); }
REDOUBT_INLINE Bits first(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// Loads the first n < kLanes elements; the other lanes are `fill`, and their memory is not read.
REDOUBT_INLINE F32s load_first(const float* x, int n, F32s fill) {
  return _mm256_blendv_ps(fill, _mm256_maskload_ps(x, first(n)), _mm256_castsi256_ps(first(n)));
}
// Keeps the first n < kLanes lanes; the others are 0.
REDOUBT_INLINE F32s keep_first(F32s x, int n) { return _mm256_and_ps(x, _mm256_castsi256_ps(first(n))); }
// The first n <= kLanes lanes of `replacement`, the others of x.
REDOUBT_INLINE F32s replace_first(F32s x, int n, F32s replacement) {
  return _mm256_blendv_ps(x, replacement, _mm256_castsi256_ps(first(n)));
}
REDOUBT_INLINE void store_first(float* to, F32s x, int n) { _mm256_maskstore_ps(to, first(n), x); }

REDOUBT_INLINE F32s fma(F32s a, F32s b, F32s c) { return _mm256_fmadd_ps(a, b, c); }
// a b - c
REDOUBT_INLINE F32s fms(F32s a, F32s b, F32s c) { return _mm256_fmsub_ps(a, b, c); }
REDOUBT_INLINE F32s add(F32s a, F32s b) { return _mm256_add_ps(a, b); }
REDOUBT_INLINE F32s sub(F32s a, F32s b) { return _mm256_sub_ps(a, b); }
REDOUBT_INLINE F32s mul(F32s a, F32s b) { return _mm256_mul_ps(a, b); }
REDOUBT_INLINE F32s div(F32s a, F32s b) { return _mm256_div_ps(a, b); }
// a > b ? a : b, so b where either is NaN; and a < b ? a : b.
REDOUBT_INLINE F32s max_of(F32s a, F32s b) { return _mm256_max_ps(a, b); }
REDOUBT_INLINE F32s min_of(F32s a, F32s b) { return _mm256_min_ps(a, b); }

// 2^n from n + kRoundMagic.
REDOUBT_INLINE F32s power_of_two(F32s biased) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(biased), 23));
}
// x < limit ? 0 : value
REDOUBT_INLINE F32s zero_below(F32s x, float limit, F32s value) {
  return _mm256_and_ps(_mm256_cmp_ps(x, set(limit), _CMP_NLT_UQ), value);
}
// x >= limit ? value : 0
REDOUBT_INLINE F32s zero_unless_at_least(F32s x, float limit, F32s value) {
  return _mm256_and_ps(_mm256_cmp_ps(x, set(limit), _CMP_GE_OQ), value);
}

// By x's sign bit: `negative` where it is set, `positive` elsewhere.
REDOUBT_INLINE F32s choose_by_sign(F32s x, F32s negative, F32s positive) {
  return _mm256_blendv_ps(positive, negative, x);
}

// bf16: kLanes of them in a row; and kLanes pairs, of which the even or the odd.
REDOUBT_INLINE F32s load_bf16(const uint16_t* x) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
REDOUBT_INLINE Bits load_pairs(const void* x) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
}
REDOUBT_INLINE F32s even_of(Bits pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
REDOUBT_INLINE F32s odd_of(Bits pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000))));
}
// (x0 x1 x2 ...) and (y0 y1 y2 ...) to (x0 y0 x1 y1 ...), in two vectors; and back.
REDOUBT_INLINE void interleave(F32s& x, F32s& y) {
  const F32s low = _mm256_unpacklo_ps(x, y), high = _mm256_unpackhi_ps(x, y);
  x = _mm256_permute2f128_ps(low, high, 0x20);
  y = _mm256_permute2f128_ps(low, high, 0x31);
}
REDOUBT_INLINE void deinterleave(F32s& x, F32s& y) {
  const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(x, y, 0x88));
  const __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(x, y, 0xdd));
  x = _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8));
  y = _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8));
}
// Rounds to nearest even; NaN stays NaN.
REDOUBT_INLINE void store_bf16(uint16_t* to, F32s x) {
  const Bits bits = _mm256_castps_si256(x);
  const Bits odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const Bits rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const Bits quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const Bits chosen = _mm256_castps_si256(_mm256_blendv_ps(
      _mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), _mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  const Bits high = _mm256_srli_epi32(chosen, 16);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed);
}

// Integers. Pairs of int8 as pairs of int16; one pair of int16 for all lanes; per lane sum + x0 y0 + x1 y1.
REDOUBT_INLINE Bits zero_bits() { return _mm256_setzero_si256(); }
REDOUBT_INLINE Bits load_int8_pairs(const void* x) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(x)));
}
REDOUBT_INLINE Bits set_pair(int32_t pair) { return _mm256_set1_epi32(pair); }
REDOUBT_INLINE Bits add_dot(Bits sum, Bits x, Bits y) {
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(x, y));
  // Without this the compiler computes a tile's products first, runs out of registers and keeps sums in
  // memory.
  __asm__("" : "+x"(sum));
  return sum;
}
REDOUBT_INLINE F32s to_float(Bits x) { return _mm256_cvtepi32_ps(x); }
// Rounds to nearest even; the results must fit. `to` may be where x was loaded from.
REDOUBT_INLINE void store_integers(int16_t* to, F32s x) {
  const Bits words = _mm256_cvtps_epi32(x);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
REDOUBT_INLINE void store_integers(int8_t* to, F32s x) {
  const Bits words = _mm256_cvtps_epi32(x);
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(halves, halves));
}
// Writes every second place; those between stay as they are.
template <typename Integer>
REDOUBT_INLINE void store_apart(Integer* to, F32s x) {
  alignas(16) Integer codes[kLanes];
  store_integers(codes, x);
  for (int i = 0; i < kLanes; ++i) to[2 * i] = codes[i];
}
// Of floats' bits, as unsigned integers.
REDOUBT_INLINE Bits bits_of(F32s x) { return _mm256_castps_si256(x); }
REDOUBT_INLINE F32s float_of_bits(Bits x) { return _mm256_castsi256_ps(x); }
REDOUBT_INLINE Bits magnitude_bits(F32s x) {
  return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(kMagnitudeBits));
}
REDOUBT_INLINE Bits max_bits(Bits a, Bits b) { return _mm256_max_epu32(a, b); }
REDOUBT_INLINE uint32_t max_bits_of_lanes(Bits x) {
  __m128i x4 = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  x4 = _mm_max_epu32(x4, _mm_shuffle_epi32(x4, 0x4e));
  return uint32_t(_mm_cvtsi128_si32(_mm_max_epu32(x4, _mm_shuffle_epi32(x4, 0xb1))));
}

// Adds the upper half of the lanes to the lower until one is left.
REDOUBT_INLINE float sum_of_lanes(F32s x) {
  __m128 x4 = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  x4 = _mm_add_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_add_ss(x4, _mm_movehdup_ps(x4)));
}
// The lanes hold no NaN.
REDOUBT_INLINE float max_of_lanes(F32s x) {
  __m128 x4 = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  x4 = _mm_max_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_max_ss(x4, _mm_movehdup_ps(x4)));
}
