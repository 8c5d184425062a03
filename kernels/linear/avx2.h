// Shared by the AVX2 linear kernels: the tier's functions, and loads and stores of the packed layout. The
// results are those of linear/scalar.cc, bit for bit.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "contract/linear.h"
#include "machine/weight_stream.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace redoubt::avx2 {

void linear_int8(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end);
void linear_fp32(const PackedMatrix& w, const FloatRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end);
void quantize_rows(const FloatRows& x, const QuantizedRows& out, int row, int col);
void dequantize_row(const PackedMatrix& w, int32_t row, float* out);

// A tile's 32 outputs are four registers of eight.
inline constexpr int kColumns = 4;

[[gnu::always_inline]] inline __m256i load_32_bytes(const void* bytes) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(bytes));
}

[[gnu::always_inline]] inline __m128i load_16_bytes(const void* bytes) {
  return _mm_loadu_si128(static_cast<const __m128i*>(bytes));
}

// The 16 entries of a lut4 matrix, in both halves.
[[gnu::always_inline]] inline __m256i load_table(const PackedMatrix& w) {
  return _mm256_broadcastsi128_si256(load_16_bytes(w.table.data()));
}

// The same four int8 activations, or two 16-bit ones, in every lane.
[[gnu::always_inline]] inline __m256i broadcast_word(const void* values) {
  int32_t word;
  __builtin_memcpy(&word, values, 4);
  return _mm256_set1_epi32(word);
}

// 8 fp16 values as fp32.
[[gnu::always_inline]] inline __m256 load_halves(const uint8_t* halves) {
  return _mm256_cvtph_ps(load_16_bytes(halves));
}

// Finishes 8 outputs of a row: bias, accumulation, store. Outputs beyond the last are not touched.
[[gnu::always_inline]] inline void write_outputs(const PackedMatrix& w, const LinearOutput& y, int row,
                                                 int output, __m256 acc_f32x8) {
  float* out = y.values + row * y.stride + output;
  if (output + 8 <= w.rows) {  // whole stores, because masked ones are slow on AMD's cores
    if (y.bias != nullptr) acc_f32x8 = _mm256_add_ps(acc_f32x8, _mm256_loadu_ps(y.bias + output));
    if (y.accumulate) acc_f32x8 = _mm256_add_ps(acc_f32x8, _mm256_loadu_ps(out));
    return _mm256_storeu_ps(out, acc_f32x8);
  }
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i real = _mm256_cmpgt_epi32(_mm256_set1_epi32(w.rows - output), lanes);
  if (y.bias != nullptr) acc_f32x8 = _mm256_add_ps(acc_f32x8, _mm256_maskload_ps(y.bias + output, real));
  if (y.accumulate) acc_f32x8 = _mm256_add_ps(acc_f32x8, _mm256_maskload_ps(out, real));
  _mm256_maskstore_ps(out, real, acc_f32x8);
}

}  // namespace redoubt::avx2

#pragma GCC pop_options
