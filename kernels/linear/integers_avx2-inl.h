// Vectors of integers with AVX2, for the linear kernels that are written once for AVX2 and for AVX-512
// without VNNI (linear/int8_nibbles-inl.h, linear/int8_bytes-inl.h). Included after simd/vector_avx2-inl.h.

REDOUBT_INLINE Bits load_codes(const void* codes) { return load_32_bytes(codes); }
// The 16 entries of a lut4 matrix, in each 16 bytes.
REDOUBT_INLINE Bits spread_table(const PackedMatrix& w) { return load_table(w); }
REDOUBT_INLINE Bits look_up(Bits table, Bits codes) { return _mm256_shuffle_epi8(table, codes); }
REDOUBT_INLINE Bits set_bytes(int x) { return _mm256_set1_epi8(int8_t(x)); }
REDOUBT_INLINE Bits set_words(int x) { return _mm256_set1_epi16(int16_t(x)); }
REDOUBT_INLINE Bits and_bits(Bits x, Bits y) { return _mm256_and_si256(x, y); }
REDOUBT_INLINE Bits xor_bits(Bits x, Bits y) { return _mm256_xor_si256(x, y); }
template <int kBits>
REDOUBT_INLINE Bits shift_words_right(Bits x) {
  return _mm256_srli_epi16(x, kBits);
}
template <int kBits>
REDOUBT_INLINE Bits shift_integers_left(Bits x) {
  return _mm256_slli_epi32(x, kBits);
}
REDOUBT_INLINE Bits add_words(Bits x, Bits y) { return _mm256_add_epi16(x, y); }
REDOUBT_INLINE Bits add_integers(Bits x, Bits y) { return _mm256_add_epi32(x, y); }
// Per 16 bits codes0 inputs0 + codes1 inputs1 of unsigned codes and signed inputs, which must fit.
REDOUBT_INLINE Bits multiply_bytes(Bits codes_u8, Bits inputs_i8) {
  return _mm256_maddubs_epi16(codes_u8, inputs_i8);
}
// The two halves of each 32 bits, added up.
REDOUBT_INLINE Bits add_halves(Bits sums_i16) { return _mm256_madd_epi16(sums_i16, set_words(1)); }
// Keeps the compiler from computing all products first and adding them up as a tree, for which there are not
// enough registers.
REDOUBT_INLINE void keep_order(Bits& sum) { __asm__("" : "+x"(sum)); }
