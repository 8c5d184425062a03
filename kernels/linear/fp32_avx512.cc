// Weights of any type times fp32 activations. A tile's weights are converted to fp32 in registers, one input
// after the other, and multiplied with up to kPassRows rows; more rows take more passes. One row of bf16 or
// fp32 weights is bound by memory.
#include <immintrin.h>

#include "linear/avx512.h"
#include "linear/row_passes.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")

namespace redoubt::avx512 {
namespace {

constexpr int kPassRows = 8;

// An output is one chain of fused multiply-adds, four cycles each, so a core needs at least four columns of
// 16 outputs in flight: few rows take several tiles at once.
constexpr int tiles_at_once(WeightType type, int rows) {
  return !is_integer_type(type) || rows > 2 ? 1 : 4 / rows;
}

// Inputs that lie together in the packed bytes, and how many bytes they take for the 32 outputs of a tile.
constexpr int step_inputs(WeightType type) {
  return type == WeightType::kInt8 || type == WeightType::kFp32 ? 4 : 8;
}
constexpr int step_bytes(WeightType type) { return is_integer_type(type) ? 128 : 512; }

// What each of the 16 codes of a 4-bit type stands for, before its scale.
template <WeightType kType>
REDOUBT_INLINE __m512 code_values(const PackedMatrix& w) {
  if constexpr (kType == WeightType::kLut4) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_table(w)));
  constexpr float kZeroPoint = kType == WeightType::kSymInt4 ? 8.0f : 0.0f;
  return _mm512_sub_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                       _mm512_set1_ps(kZeroPoint));
}

// Bytes of 16 outputs, the half of a tile, that lie together.
constexpr int column_bytes(WeightType type) { return type == WeightType::kFp16 ? 32 : 64; }

// Input i of a step, for 16 outputs of which the packed bytes begin at `column`.
template <WeightType kType>
REDOUBT_INLINE __m512 decode(const uint8_t* column, int i, __m512 values_f32x16, __m512 scale_f32x16,
                             __m512 minimum_f32x16) {
  if constexpr (kType == WeightType::kFp32) return _mm512_loadu_ps(column + i * 128);
  if constexpr (kType == WeightType::kFp16) return load_halves(column + i * 64);
  if constexpr (kType == WeightType::kBf16) {
    const __m512i pair = load_codes(column + i / 2 * 128);
    return _mm512_castsi512_ps(i % 2 == 0 ? _mm512_slli_epi32(pair, 16)
                                          : _mm512_and_si512(pair, _mm512_set1_epi32(int(0xffff0000u))));
  }
  const __m512i codes = load_codes(column);
  if constexpr (kType == WeightType::kInt8) {
    // Flipping the top bit turns u into the two's complement of u - 128.
    const __m512i flipped = _mm512_xor_si512(codes, _mm512_set1_epi8(int8_t(0x80)));
    const __m512i value = _mm512_srai_epi32(_mm512_slli_epi32(flipped, 24 - 8 * i), 24);
    return _mm512_mul_ps(scale_f32x16, _mm512_cvtepi32_ps(value));
  }
  // The permutation uses only the low four bits of its index, so the nibble needs no mask.
  const __m512 value =
      _mm512_permutexvar_ps(_mm512_srli_epi32(codes, (i % 4) * 8 + (i / 4) * 4), values_f32x16);
  if constexpr (kType == WeightType::kAsymInt4) return _mm512_fmadd_ps(scale_f32x16, value, minimum_f32x16);
  return _mm512_mul_ps(scale_f32x16, value);
}

// kTiles tiles' outputs of rows [row, row + kRows).
template <WeightType kType, int kTiles, int kRows>
void multiply_tiles(const PackedMatrix& w, const FloatRows& x, const LinearOutput& y, int tile, int row) {
  constexpr int kColumns = kTiles * 2, kStepInputs = step_inputs(kType), kStepBytes = step_bytes(kType);
  const int64_t tile_bytes = int64_t(w.tile_bytes()), stride = x.stride;
  const int runs = is_integer_type(kType) ? w.blocks() : 1;  // of inputs that share a scale
  const int run_inputs = is_integer_type(kType) ? w.group : w.cols;
  const uint8_t* packed = w.tile(tile);
  const __m512 code_value = code_values<kType>(w);
  const float* values = x.values + row * stride;

  __m512 acc[kRows][kColumns];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) acc[r][c] = _mm512_setzero_ps();
  }
  const auto add_input = [&](int i, const __m512(&scale)[kColumns],
                             const __m512(&minimum)[kColumns]) __attribute__((always_inline)) {
    __m512 weights[kColumns];
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      weights[c] = decode<kType>(packed + (c / 2) * tile_bytes + (c % 2) * column_bytes(kType), i, code_value,
                                 scale[c], minimum[c]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 input = _mm512_set1_ps(values[r * stride + i]);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) acc[r][c] = _mm512_fmadd_ps(input, weights[c], acc[r][c]);
    }
  };
  for (int run = 0; run < runs; ++run) {
    __m512 scale[kColumns] = {}, minimum[kColumns] = {};
    if constexpr (is_integer_type(kType)) {
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) {
        const uint8_t* halves =
            packed + run_inputs / kStepInputs * kStepBytes + (c / 2) * tile_bytes + (c % 2) * 32;
        scale[c] = load_halves(halves);
        if constexpr (kType == WeightType::kAsymInt4) minimum[c] = load_halves(halves + 64);
      }
    }
    for (int step = 0; step < run_inputs / kStepInputs; ++step, packed += kStepBytes, values += kStepInputs) {
#pragma GCC unroll 4
      for (int t = 0; t < kTiles; ++t) {
#pragma GCC unroll 8
        for (int line = 0; line < kStepBytes; line += 64) {
          prefetch_weights<prefetch_for(kRows)>(packed + t * tile_bytes + line);
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < kStepInputs; ++i) add_input(i, scale, minimum);
    }
    packed += scale_bytes(kType);
  }
  if constexpr (!is_integer_type(kType)) {
#pragma GCC unroll 8
    for (int i = 0; i < kStepInputs; ++i) {
      if (i < run_inputs % kStepInputs) add_input(i, {}, {});
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) write_outputs(w, y, row + r, tile * kTileOutputs + c * 16, acc[r][c]);
  }
}

using TilesKernel = void (*)(const PackedMatrix&, const FloatRows&, const LinearOutput&, int tile, int row);

struct RowsKernel {
  TilesKernel one_tile;
  TilesKernel several_tiles;  // tiles_at_once(type, rows)
};

template <WeightType kType, int kRows>
constexpr RowsKernel kRowsKernel = {multiply_tiles<kType, 1, kRows>,
                                    multiply_tiles<kType, tiles_at_once(kType, kRows), kRows>};

template <WeightType kType>
constexpr RowsKernel kRowsKernels[kPassRows] = {
    kRowsKernel<kType, 1>, kRowsKernel<kType, 2>, kRowsKernel<kType, 3>, kRowsKernel<kType, 4>,
    kRowsKernel<kType, 5>, kRowsKernel<kType, 6>, kRowsKernel<kType, 7>, kRowsKernel<kType, 8>};

const RowsKernel* rows_kernels(WeightType type) {
  return with_weight_type(type, [](auto constant) { return &kRowsKernels<constant()>[0]; });
}

}  // namespace

void linear_fp32(const PackedMatrix& w, const FloatRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end) {
  const RowsKernel* kernels = rows_kernels(w.type);
  const int together = tiles_at_once(w.type, x.rows);
  int tiles = together;
  for (int tile = tile_begin; tile < tile_end; tile += tiles) {
    tiles = tile + together <= tile_end ? together : 1;
    in_passes(x.rows, kPassRows, [&](int begin, int end) {
      const RowsKernel& kernel = kernels[end - begin - 1];
      (tiles > 1 ? kernel.several_tiles : kernel.one_tile)(w, x, y, tile, begin);
    });
  }
}

}  // namespace redoubt::avx512

#pragma GCC pop_options
