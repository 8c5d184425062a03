// The lanes of 16 AVX-512 vectors, each vector's folded to one number. Included inside a target region of
// AVX-512, after <immintrin.h> and what defines REDOUBT_INLINE; no include guard.

// Lane i is all lanes of v[i] together: the upper half onto the lower until one is left. operation takes and
// gives 16 lanes.
template <typename Operation>
REDOUBT_INLINE __m512 fold_lanes(const __m512 (&v)[16], const Operation& operation) {
  const auto halves = [&](__m512 a, __m512 b) __attribute__((always_inline)) {
    return operation(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  };
  const auto quarters = [&](__m512 a, __m512 b) __attribute__((always_inline)) {
    return operation(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  const auto pairs = [&](__m512 a, __m512 b) __attribute__((always_inline)) {
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return operation(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  };
  __m512 folded[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) folded[i] = quarters(halves(v[i], v[4 + i]), halves(v[8 + i], v[12 + i]));
  const __m512 a = pairs(folded[0], folded[1]), b = pairs(folded[2], folded[3]);
  return operation(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}
