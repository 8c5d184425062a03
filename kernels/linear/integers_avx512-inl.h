// Vectors of integers with AVX-512 (F, BW), for the linear kernels that are written once for AVX2 and for
// AVX-512 without VNNI. Included after simd/vector_avx512-inl.h and simd/dot_avx512-inl.h.

// The 16 entries of a lut4 matrix, in each 16 bytes.
REDOUBT_INLINE Bits spread_table(const PackedMatrix& w) { return _mm512_broadcast_i32x4(load_table(w)); }
REDOUBT_INLINE Bits broadcast_word(const void* values) {
  return broadcast_inputs(static_cast<const int8_t*>(values));
}
REDOUBT_INLINE Bits look_up(Bits table, Bits codes) { return _mm512_shuffle_epi8(table, codes); }
REDOUBT_INLINE Bits set_bytes(int x) { return _mm512_set1_epi8(int8_t(x)); }
REDOUBT_INLINE Bits set_words(int x) { return _mm512_set1_epi16(int16_t(x)); }
REDOUBT_INLINE Bits and_bits(Bits x, Bits y) { return _mm512_and_si512(x, y); }
REDOUBT_INLINE Bits xor_bits(Bits x, Bits y) { return _mm512_xor_si512(x, y); }
template <int kBits>
REDOUBT_INLINE Bits shift_words_right(Bits x) {
  return _mm512_srli_epi16(x, kBits);
}
template <int kBits>
REDOUBT_INLINE Bits shift_integers_left(Bits x) {
  return _mm512_slli_epi32(x, kBits);
}
REDOUBT_INLINE Bits add_words(Bits x, Bits y) { return _mm512_add_epi16(x, y); }
REDOUBT_INLINE Bits add_integers(Bits x, Bits y) { return _mm512_add_epi32(x, y); }
// Per 16 bits codes0 inputs0 + codes1 inputs1 of unsigned codes and signed inputs, which must fit.
REDOUBT_INLINE Bits multiply_bytes(Bits codes_u8, Bits inputs_i8) {
  return _mm512_maddubs_epi16(codes_u8, inputs_i8);
}
// The two halves of each 32 bits, added up.
REDOUBT_INLINE Bits add_halves(Bits sums_i16) { return _mm512_madd_epi16(sums_i16, set_words(1)); }
// Keeps the compiler from computing all products first and adding them up as a tree, for which there are not
// enough registers.
REDOUBT_INLINE void keep_order(Bits& sum) { __asm__("" : "+v"(sum)); }
