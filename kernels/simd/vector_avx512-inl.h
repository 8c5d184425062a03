// AVX-512's vector of floats for the kernels written once for all vector tiers (ops/rows-inl.h,
// attention/float-inl.h). Included inside the tier's namespace and target region, after all other headers; so
// no include guard and no includes. Each function is one IEEE operation, so that tiers agree bit for bit.
// Where an operand may be NaN the order of operands matters.

using F32s = __m512;
using Bits = __m512i;
inline constexpr int kLanes = 16;
// Registers for accumulators in a tile of rows x vectors; the rest hold the operands.
inline constexpr int kAccumulators = 24;
inline constexpr int kMaxTileRows = 12;

REDOUBT_INLINE F32s set(float x) { return _mm512_set1_ps(x); }
REDOUBT_INLINE F32s load(const float* x) { return _mm512_loadu_ps(x); }
REDOUBT_INLINE void store(float* to, F32s x) { _mm512_storeu_ps(to, x); }
REDOUBT_INLINE __mmask16 first(int n) { return __mmask16((1u << n) - 1); }
// Loads the first n < kLanes elements; the other lanes are `fill`, and their memory is not read.
REDOUBT_INLINE F32s load_first(const float* x, int n, F32s fill) {
  return _mm512_mask_loadu_ps(fill, first(n), x);
}
// Keeps the first n < kLanes lanes; the others are 0.
REDOUBT_INLINE F32s keep_first(F32s x, int n) { return _mm512_maskz_mov_ps(first(n), x); }
// The first n <= kLanes lanes of `replacement`, the others of x.
REDOUBT_INLINE F32s replace_first(F32s x, int n, F32s replacement) {
  return _mm512_mask_mov_ps(x, first(n), replacement);
}
REDOUBT_INLINE void store_first(float* to, F32s x, int n) { _mm512_mask_storeu_ps(to, first(n), x); }

REDOUBT_INLINE F32s fma(F32s a, F32s b, F32s c) { return _mm512_fmadd_ps(a, b, c); }
// a b - c
REDOUBT_INLINE F32s fms(F32s a, F32s b, F32s c) { return _mm512_fmsub_ps(a, b, c); }
REDOUBT_INLINE F32s add(F32s a, F32s b) { return _mm512_add_ps(a, b); }
REDOUBT_INLINE F32s sub(F32s a, F32s b) { return _mm512_sub_ps(a, b); }
REDOUBT_INLINE F32s mul(F32s a, F32s b) { return _mm512_mul_ps(a, b); }
REDOUBT_INLINE F32s div(F32s a, F32s b) { return _mm512_div_ps(a, b); }
// a > b ? a : b, so b where either is NaN; and a < b ? a : b.
REDOUBT_INLINE F32s max_of(F32s a, F32s b) { return _mm512_max_ps(a, b); }
REDOUBT_INLINE F32s min_of(F32s a, F32s b) { return _mm512_min_ps(a, b); }

// 2^n from n + kRoundMagic.
REDOUBT_INLINE F32s power_of_two(F32s biased) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(biased), 23));
}
// x < limit ? 0 : value
REDOUBT_INLINE F32s zero_below(F32s x, float limit, F32s value) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set(limit), _CMP_NLT_UQ), value);
}
// x >= limit ? value : 0
REDOUBT_INLINE F32s zero_unless_at_least(F32s x, float limit, F32s value) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set(limit), _CMP_GE_OQ), value);
}

// By x's sign bit: `negative` where it is set, `positive` elsewhere.
REDOUBT_INLINE F32s choose_by_sign(F32s x, F32s negative, F32s positive) {
  return _mm512_mask_mov_ps(positive, _mm512_movepi32_mask(_mm512_castps_si512(x)), negative);
}

// bf16: kLanes of them in a row; and kLanes pairs, of which the even or the odd.
REDOUBT_INLINE F32s load_bf16(const uint16_t* x) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
REDOUBT_INLINE Bits load_pairs(const void* x) { return _mm512_loadu_si512(x); }
REDOUBT_INLINE F32s even_of(Bits pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
REDOUBT_INLINE F32s odd_of(Bits pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000))));
}
// (x0 x1 x2 ...) and (y0 y1 y2 ...) to (x0 y0 x1 y1 ...), in two vectors; and back.
REDOUBT_INLINE void interleave(F32s& x, F32s& y) {
  const Bits low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const F32s first_half = _mm512_permutex2var_ps(x, low, y);
  y = _mm512_permutex2var_ps(x, _mm512_add_epi32(low, _mm512_set1_epi32(8)), y);
  x = first_half;
}
REDOUBT_INLINE void deinterleave(F32s& x, F32s& y) {
  const Bits even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const F32s evens = _mm512_permutex2var_ps(x, even, y);
  y = _mm512_permutex2var_ps(x, _mm512_add_epi32(even, _mm512_set1_epi32(1)), y);
  x = evens;
}
// Rounds to nearest even; NaN stays NaN.
REDOUBT_INLINE void store_bf16(uint16_t* to, F32s x) {
  const Bits bits = _mm512_castps_si512(x);
  const Bits odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  Bits rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits,
                                 _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

// Integers. Pairs of int8 as pairs of int16; one pair of int16 for all lanes. add_dot, which depends on VNNI,
// is not here: simd/dot_avx512-inl.h, simd/dot_avx512_vnni-inl.h.
REDOUBT_INLINE Bits zero_bits() { return _mm512_setzero_si512(); }
REDOUBT_INLINE Bits load_int8_pairs(const void* x) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(x)));
}
REDOUBT_INLINE Bits set_pair(int32_t pair) { return _mm512_set1_epi32(pair); }
REDOUBT_INLINE F32s to_float(Bits x) { return _mm512_cvtepi32_ps(x); }
// Rounds to nearest even; the results must fit. `to` may be where x was loaded from.
REDOUBT_INLINE void store_integers(int16_t* to, F32s x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x)));
}
REDOUBT_INLINE void store_integers(int8_t* to, F32s x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}
// Writes every second place; those between stay as they are.
REDOUBT_INLINE void store_apart(int8_t* to, F32s x) {
  const __m256i words = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x));
  _mm256_mask_storeu_epi8(to, 0x55555555, words);
}
REDOUBT_INLINE void store_apart(int16_t* to, F32s x) {
  _mm512_mask_storeu_epi16(to, 0x55555555, _mm512_cvtps_epi32(x));
}
// Of floats' bits, as unsigned integers.
REDOUBT_INLINE Bits bits_of(F32s x) { return _mm512_castps_si512(x); }
REDOUBT_INLINE F32s float_of_bits(Bits x) { return _mm512_castsi512_ps(x); }
REDOUBT_INLINE Bits magnitude_bits(F32s x) {
  return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(kMagnitudeBits));
}
REDOUBT_INLINE Bits max_bits(Bits a, Bits b) { return _mm512_max_epu32(a, b); }
REDOUBT_INLINE uint32_t max_bits_of_lanes(Bits x) { return _mm512_reduce_max_epu32(x); }

// Adds the upper half of the lanes to the lower until one is left.
REDOUBT_INLINE float sum_of_lanes(F32s x) {
  const __m256 x8 = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  __m128 x4 = _mm_add_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps(x8, 1));
  x4 = _mm_add_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_add_ss(x4, _mm_movehdup_ps(x4)));
}
// The lanes hold no NaN.
REDOUBT_INLINE float max_of_lanes(F32s x) { return _mm512_reduce_max_ps(x); }
