// Weights of any type times fp32 activations with AVX2. A tile's weights are converted to fp32 in registers,
// one input after the other, and multiplied with up to kPassRows rows.
#include <immintrin.h>

#include "linear/avx2.h"
#include "linear/row_passes.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace redoubt::avx2 {
namespace {

// 8 sums; the other 8 registers are for decoding and inputs. 3 rows spill (docs/tuning.md).
constexpr int kPassRows = 2;

// Inputs that lie together in the packed bytes, and how many bytes they take for the 32 outputs of a tile.
constexpr int step_inputs(WeightType type) {
  switch (type) {
    case WeightType::kInt8:
      return 4;
    case WeightType::kBf16:
      return 2;
    case WeightType::kFp16:
    case WeightType::kFp32:
      return 1;
    case WeightType::kSymInt4:
    case WeightType::kAsymInt4:
    case WeightType::kLut4:
      return 8;
  }
  std::abort();
}
constexpr int step_bytes(WeightType type) { return type == WeightType::kFp16 ? 64 : 128; }

// Input i of a step, for 8 outputs of which the packed bytes begin at `column`.
template <WeightType kType>
[[gnu::always_inline]] inline __m256 decode(const uint8_t* column, int i, __m256i table_i8x16,
                                            __m256 scale_f32x8, __m256 minimum_f32x8) {
  if constexpr (kType == WeightType::kFp16) return load_halves(column);
  const __m256i packed = load_32_bytes(column);
  if constexpr (kType == WeightType::kFp32) return _mm256_castsi256_ps(packed);
  if constexpr (kType == WeightType::kBf16) {
    return _mm256_castsi256_ps(i == 0 ? _mm256_slli_epi32(packed, 16)
                                      : _mm256_and_si256(packed, _mm256_set1_epi32(int(0xffff0000u))));
  }
  if constexpr (kType == WeightType::kInt8) {
    // Flipping the top bit turns u into the two's complement of u - 128.
    const __m256i flipped = _mm256_xor_si256(packed, _mm256_set1_epi8(int8_t(0x80)));
    const __m256i value = _mm256_srai_epi32(_mm256_slli_epi32(flipped, 24 - 8 * i), 24);
    return _mm256_mul_ps(scale_f32x8, _mm256_cvtepi32_ps(value));
  }
  const __m256i code =
      _mm256_and_si256(_mm256_srli_epi32(packed, (i % 4) * 8 + (i / 4) * 4), _mm256_set1_epi32(15));
  if constexpr (kType == WeightType::kAsymInt4) {
    return _mm256_fmadd_ps(scale_f32x8, _mm256_cvtepi32_ps(code), minimum_f32x8);
  }
  if constexpr (kType == WeightType::kLut4) {
    // The low byte of each lane is the entry; the other bytes are shifted out, and the sign is extended.
    const __m256i value =
        _mm256_srai_epi32(_mm256_slli_epi32(_mm256_shuffle_epi8(table_i8x16, code), 24), 24);
    return _mm256_mul_ps(scale_f32x8, _mm256_cvtepi32_ps(value));
  }
  return _mm256_mul_ps(scale_f32x8, _mm256_cvtepi32_ps(_mm256_sub_epi32(code, _mm256_set1_epi32(8))));
}

// One tile's outputs of rows [row, row + kRows).
template <WeightType kType, int kRows>
void multiply_tile(const PackedMatrix& w, const FloatRows& x, const LinearOutput& y, int tile, int row) {
  constexpr int kStepInputs = step_inputs(kType), kStepBytes = step_bytes(kType);
  const int64_t stride = x.stride;
  const int runs = is_integer_type(kType) ? w.blocks() : 1;  // of inputs that share a scale
  const int steps = (is_integer_type(kType) ? w.group : w.cols) / kStepInputs;
  const uint8_t* packed = w.tile(tile);
  const __m256i table = load_table(w);
  const float* values = x.values + row * stride;

  __m256 acc[kRows][kColumns] = {};
  for (int run = 0; run < runs; ++run) {
    __m256 scale[kColumns] = {}, minimum[kColumns] = {};
    if constexpr (is_integer_type(kType)) {
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) {
        scale[c] = load_halves(packed + steps * kStepBytes + c * 16);
        if constexpr (kType == WeightType::kAsymInt4) {
          minimum[c] = load_halves(packed + steps * kStepBytes + 64 + c * 16);
        }
      }
    }
    for (int step = 0; step < steps; ++step, packed += kStepBytes, values += kStepInputs) {
      prefetch_weights<Prefetch::kNear>(packed, packed + kStepBytes);
#pragma GCC unroll 8
      for (int i = 0; i < kStepInputs; ++i) {
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; ++c) {
          const __m256 weights =
              decode<kType>(packed + c * (kStepBytes / kColumns), i, table, scale[c], minimum[c]);
#pragma GCC unroll 2
          for (int r = 0; r < kRows; ++r) {
            acc[r][c] = _mm256_fmadd_ps(_mm256_set1_ps(values[r * stride + i]), weights, acc[r][c]);
          }
        }
      }
    }
    packed += scale_bytes(kType);
  }
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) write_outputs(w, y, row + r, tile * kTileOutputs + c * 8, acc[r][c]);
  }
}

template <WeightType kType>
constexpr TileKernel<FloatRows> kTileKernels[kPassRows] = {multiply_tile<kType, 1>, multiply_tile<kType, 2>};

const TileKernel<FloatRows>* tile_kernels(WeightType type) {
  return with_weight_type(type, [](auto constant) { return &kTileKernels<constant()>[0]; });
}

}  // namespace

void linear_fp32(const PackedMatrix& w, const FloatRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end) {
  multiply_in_passes(tile_kernels(w.type), kPassRows, w, x, y, tile_begin, tile_end);
}

}  // namespace redoubt::avx2

#pragma GCC pop_options
