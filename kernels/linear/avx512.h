// Shared by the AVX-512 linear kernels, with VNNI and without: the functions of the tier without, and loads
// and stores of the packed layout. The results are those of linear/scalar.cc, bit for bit.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "contract/linear.h"
#include "machine/weight_stream.h"
#include "simd/inline.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")

namespace redoubt::avx512 {

void linear_int8(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end);
void linear_fp32(const PackedMatrix& w, const FloatRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end);
void quantize_rows(const FloatRows& x, const QuantizedRows& out, int row, int col);

// Products of one or two rows are bound by memory.
constexpr Prefetch prefetch_for(int rows) { return rows <= 2 ? Prefetch::kNear : Prefetch::kFar; }

// 64 bytes of codes.
REDOUBT_INLINE __m512i load_codes(const uint8_t* codes) { return _mm512_loadu_si512(codes); }

// 16 fp16 values as fp32.
REDOUBT_INLINE __m512 load_halves(const uint8_t* halves) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
}

// The 16 entries of a lut4 matrix.
REDOUBT_INLINE __m128i load_table(const PackedMatrix& w) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(w.table.data()));
}

// The same four int8 activations in every lane.
REDOUBT_INLINE __m512i broadcast_inputs(const int8_t* values) {
  int32_t word;
  __builtin_memcpy(&word, values, 4);
  return _mm512_set1_epi32(word);
}

// Prefetches a cache line that will be written and may be in another core's cache. Inline assembly, because
// GCC turns the builtin into an ordinary prefetch unless the target includes prfchw.
REDOUBT_INLINE void prefetch_to_write(const float* line) { __asm__ volatile("prefetchw %0" ::"m"(*line)); }

// Mask of the 16 outputs from `output` on that exist.
REDOUBT_INLINE __mmask16 real_outputs(const PackedMatrix& w, int output) {
  const int left = w.rows - output;
  return left >= 16 ? __mmask16(0xffff) : left > 0 ? __mmask16((1u << left) - 1) : __mmask16(0);
}

// Finishes 16 outputs of a row: bias, accumulation, store.
REDOUBT_INLINE void write_outputs(const PackedMatrix& w, const LinearOutput& y, int row, int output,
                                  __m512 acc_f32x16) {
  const __mmask16 real = real_outputs(w, output);
  float* out = y.values + row * y.stride + output;
  if (y.bias != nullptr) acc_f32x16 = _mm512_add_ps(acc_f32x16, _mm512_maskz_loadu_ps(real, y.bias + output));
  if (y.accumulate) acc_f32x16 = _mm512_add_ps(acc_f32x16, _mm512_maskz_loadu_ps(real, out));
  _mm512_mask_storeu_ps(out, real, acc_f32x16);
}

}  // namespace redoubt::avx512

#pragma GCC pop_options
