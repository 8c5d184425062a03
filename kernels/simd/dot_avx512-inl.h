// Dot products with AVX-512 where there is no VNNI: per lane sum + x0 y0 + x1 y1. Included after
// simd/vector_avx512-inl.h.

REDOUBT_INLINE Bits add_dot(Bits sum, Bits x, Bits y) {
  sum = _mm512_add_epi32(sum, _mm512_madd_epi16(x, y));
  // Without this the compiler computes a tile's products first, runs out of registers and keeps sums in
  // memory.
  __asm__("" : "+v"(sum));
  return sum;
}
