// Integer weights times few rows (decode): one pass over the packed bytes, codes unpacked in registers and
// used for up to kPassRows rows. Bound by memory for one row, by vpdpbusd for many.
#include <immintrin.h>

#include "linear_avx512_vnni.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c")

namespace redoubt::avx512_vnni {
namespace {

// 16 int32 sums, and the fp32 sums mostly in memory; 9 to 12 rows were measured, and are slower.
constexpr int kPassRows = 8;
constexpr int kStepInputs = 32;  // inputs of one unrolled step: every group is a multiple

template <int kRows>
REDOUBT_INLINE void step_int4(const uint8_t* codes, const int8_t* x, int64_t x_stride,
                              __m512i (&dot)[kRows][2]) {
  const __m512i low_nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (int kb = 0; kb < kStepInputs / 8; ++kb) {
    const __m512i codes0 = load_codes(codes + kb * 128), codes1 = load_codes(codes + kb * 128 + 64);
    prefetch_weights<prefetch_for(kRows)>(codes + kb * 128);
    prefetch_weights<prefetch_for(kRows)>(codes + kb * 128 + 64);
    const __m512i low0 = _mm512_and_si512(codes0, low_nibble);
    const __m512i low1 = _mm512_and_si512(codes1, low_nibble);
    const __m512i high0 = _mm512_and_si512(_mm512_srli_epi16(codes0, 4), low_nibble);
    const __m512i high1 = _mm512_and_si512(_mm512_srli_epi16(codes1, 4), low_nibble);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512i x_low = broadcast_inputs(x + r * x_stride + kb * 8);
      add_dot(dot[r][0], low0, x_low);
      add_dot(dot[r][1], low1, x_low);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512i x_high = broadcast_inputs(x + r * x_stride + kb * 8 + 4);
      add_dot(dot[r][0], high0, x_high);
      add_dot(dot[r][1], high1, x_high);
    }
  }
}

template <int kRows>
REDOUBT_INLINE void step_int8(const uint8_t* codes, const int8_t* x, int64_t x_stride,
                              __m512i (&dot)[kRows][2]) {
#pragma GCC unroll 8
  for (int kb = 0; kb < kStepInputs / 4; ++kb) {
    const __m512i codes0 = load_codes(codes + kb * 128), codes1 = load_codes(codes + kb * 128 + 64);
    prefetch_weights<prefetch_for(kRows)>(codes + kb * 128);
    prefetch_weights<prefetch_for(kRows)>(codes + kb * 128 + 64);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512i x_step = broadcast_inputs(x + r * x_stride + kb * 4);
      add_dot(dot[r][0], codes0, x_step);
      add_dot(dot[r][1], codes1, x_step);
    }
  }
}

// One tile's outputs of rows [row, row + kRows).
template <WeightType kType, int kRows>
void multiply_tile(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile, int row) {
  constexpr bool kInt8 = kType == WeightType::kInt8;
  constexpr int kStepBytes = kStepInputs * (kInt8 ? 32 : 16);
  const int groups = w.cols / w.group, steps = w.group / kStepInputs;
  const uint8_t* codes = w.tile(tile);
  const int8_t* values = x.values + int64_t(row) * x.cols;
  const float* x_scales = x.scales + int64_t(row) * groups;
  const int32_t* starts = x.starts + int64_t(row) * groups;
  const float* offsets = x.offsets + int64_t(row) * groups;

  __m512 acc[kRows][2];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) acc[r][0] = acc[r][1] = _mm512_setzero_ps();

  for (int j = 0; j < groups; ++j) {
    __m512i dot[kRows][2];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512i start = kType == WeightType::kAsymInt4
                                ? _mm512_setzero_si512()
                                : _mm512_set1_epi32(starts[int64_t(r) * groups + j]);
      dot[r][0] = dot[r][1] = kInt8 ? _mm512_slli_epi32(start, 4) : start;
    }
    for (int step = 0; step < steps; ++step, codes += kStepBytes, values += kStepInputs) {
      if constexpr (kInt8) {
        step_int8<kRows>(codes, values, x.cols, dot);
      } else {
        step_int4<kRows>(codes, values, x.cols, dot);
      }
    }
    const __m512 scale0 = load_halves(codes), scale1 = load_halves(codes + 32);
    prefetch_weights<prefetch_for(kRows)>(codes);
    codes += 64;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 x_scale = _mm512_set1_ps(x_scales[int64_t(r) * groups + j]);
      acc[r][0] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot[r][0]), x_scale), scale0, acc[r][0]);
      acc[r][1] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot[r][1]), x_scale), scale1, acc[r][1]);
    }
    if constexpr (kType == WeightType::kAsymInt4) {
      const __m512 minimum0 = load_halves(codes), minimum1 = load_halves(codes + 32);
      prefetch_weights<prefetch_for(kRows)>(codes);
      codes += 64;
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512 x_offset = _mm512_set1_ps(offsets[int64_t(r) * groups + j]);
        acc[r][0] = _mm512_fmadd_ps(x_offset, minimum0, acc[r][0]);
        acc[r][1] = _mm512_fmadd_ps(x_offset, minimum1, acc[r][1]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    write_outputs(w, y, row + r, tile * kTileOutputs, acc[r][0]);
    write_outputs(w, y, row + r, tile * kTileOutputs + 16, acc[r][1]);
  }
}

using TileKernel = void (*)(const PackedMatrix&, const QuantizedRows&, const LinearOutput&, int tile,
                            int row);

template <WeightType kType>
constexpr TileKernel kTileKernels[kPassRows] = {
    multiply_tile<kType, 1>, multiply_tile<kType, 2>, multiply_tile<kType, 3>, multiply_tile<kType, 4>,
    multiply_tile<kType, 5>, multiply_tile<kType, 6>, multiply_tile<kType, 7>, multiply_tile<kType, 8>};

const TileKernel* tile_kernels(WeightType type) {
  switch (type) {
    case WeightType::kSymInt4:
      return kTileKernels<WeightType::kSymInt4>;
    case WeightType::kAsymInt4:
      return kTileKernels<WeightType::kAsymInt4>;
    default:
      return kTileKernels<WeightType::kInt8>;
  }
}

}  // namespace

void linear_int8(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end) {
  const TileKernel* kernels = tile_kernels(w.type);
  // Rows in passes of nearly the same size; a tile's second pass finds it in the second-level cache.
  const int passes = (x.rows + kPassRows - 1) / kPassRows;
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    for (int pass = 0; pass < passes; ++pass) {
      const int begin = x.rows * pass / passes, end = x.rows * (pass + 1) / passes;
      kernels[end - begin - 1](w, x, y, tile, begin);
    }
  }
}

}  // namespace redoubt::avx512_vnni

#pragma GCC pop_options
