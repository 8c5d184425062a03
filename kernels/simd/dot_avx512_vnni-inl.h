// Dot products with AVX-512 VNNI: per lane sum + x0 y0 + x1 y1. Included after simd/vector_avx512-inl.h.

REDOUBT_INLINE Bits add_dot(Bits sum, Bits x, Bits y) {
  // Not _mm512_dpwssd_epi32: GCC 12 copies a tile of its accumulators to memory and back at every step.
  __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
  return sum;
}
