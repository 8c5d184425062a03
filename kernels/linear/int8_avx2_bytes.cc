// Weights of 8 bits (int8 codes, lut4's entries) times int8 activations of one term or two with AVX2. Both
// factors are widened to 16 bits, where vpmaddwd multiplies pairs and adds them up exactly, so a second term
// costs nothing. vpmaddubsw is no alternative: its sums of two such products saturate, so it would need the
// signs of each row's activations moved to the weights, and another instruction to widen the sums.
#include <immintrin.h>

#include <array>
#include <utility>

#include "linear/int8_avx2_pass.h"
#include "simd/inline.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace redoubt::avx2 {
namespace {

// Sums of more rows do not fit the registers (docs/tuning.md).
constexpr int most_rows(WeightType type) { return type == WeightType::kLut4 ? 4 : 6; }

// IntegerKernels::fill. Of every four inputs the first and the third come first, because one instruction
// takes these two bytes out of a word of weights.
void fill(const QuantizedRows& x, int row, int rows, int first_group, int groups, int8_t* inputs,
          int32_t* starts) {
  const __m256i pairs =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  for (int r = 0; r < rows; ++r) {
    const int64_t group = int64_t(row + r) * (x.cols / x.group) + first_group, value = group * x.group;
    int8_t* to = inputs + r * 8;
    for (int k = 0; k < groups * x.group; k += 16) {
      __m256i words = _mm256_cvtepi8_epi16(load_16_bytes(x.values + value + k));
      if (x.low_values != nullptr) {
        const __m256i low = _mm256_cvtepi8_epi16(load_16_bytes(x.low_values + value + k));
        words = _mm256_add_epi16(_mm256_slli_epi16(words, 8), low);
      }
      alignas(32) int64_t fours[4];
      _mm256_store_si256(reinterpret_cast<__m256i*>(fours), _mm256_shuffle_epi8(words, pairs));
      for (const int64_t four : fours) {
        __builtin_memcpy(to, &four, 8);
        to += rows * 8;
      }
    }
    // Weights are multiplied as 0 .. 255, so the zero point is 128.
    for (int j = 0; j < groups; ++j) starts[j * rows + r] = 16 * x.starts[group + j];
  }
}

// Adds dot products of four inputs.
template <int kRows, int kWidth>
REDOUBT_INLINE void add_products(const __m256i (&weights_u8x32)[kWidth], const int8_t* inputs,
                                 __m256i (&dot)[kRows][kWidth]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    __m256i pairs_u16x16[kWidth];
#pragma GCC unroll 4
    for (int c = 0; c < kWidth; ++c) {
      pairs_u16x16[c] = half == 0 ? _mm256_and_si256(weights_u8x32[c], _mm256_set1_epi16(255))
                                  : _mm256_srli_epi16(weights_u8x32[c], 8);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m256i x = broadcast_word(inputs + r * 8 + half * 4);
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) {
        dot[r][c] = _mm256_add_epi32(dot[r][c], _mm256_madd_epi16(pairs_u16x16[c], x));
        keep_order(dot[r][c]);
      }
    }
  }
}

// Adds dot products of a group of inputs.
template <WeightType kType, int kRows, int kWidth>
REDOUBT_INLINE void add_group(const uint8_t* codes, __m256i table, const int8_t* inputs, int group,
                              __m256i (&dot)[kRows][kWidth]) {
  if constexpr (kType == WeightType::kInt8) {
    for (int k = 0; k < group; k += 4, codes += 128, inputs += kRows * 8) {
      __m256i weights[kWidth];
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) weights[c] = load_32_bytes(codes + c * 32);
      add_products(weights, inputs, dot);
    }
  } else {
    const __m256i low_nibble = _mm256_set1_epi8(15);
    for (int k = 0; k < group; k += 8, codes += 128, inputs += kRows * 16) {
      __m256i weights[kWidth];
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) {
        weights[c] = _mm256_shuffle_epi8(table, _mm256_and_si256(load_32_bytes(codes + c * 32), low_nibble));
      }
      add_products(weights, inputs, dot);
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) {
        const __m256i high = _mm256_srli_epi16(load_32_bytes(codes + c * 32), 4);
        weights[c] = _mm256_shuffle_epi8(table, _mm256_and_si256(high, low_nibble));
      }
      add_products(weights, inputs + kRows * 8, dot);
    }
  }
}

template <WeightType kType, int kRows>
void multiply_pass(const Pass& pass) {
  constexpr int kWidth = kRows > 1 ? kPairColumns : kColumns;
  constexpr Prefetch kPrefetch = kRows > 4 ? Prefetch::kFar : Prefetch::kNear;
  const int group = pass.matrix->group;
  // Flipping the top bit adds 128.
  const __m256i table = _mm256_xor_si256(load_table(*pass.matrix), _mm256_set1_epi8(int8_t(0x80)));
  const int8_t* inputs = pass.inputs;
  const int32_t* starts = pass.starts;
  const float* x_scales = pass.x_scales;
  float (*const sums)[kTileOutputs] = pass.sums;
  const uint8_t* codes = pass.weights;
  for (int j = 0; j < pass.groups; ++j) {
    const uint8_t* halves = codes + code_bytes(kType, group);
    const uint8_t* block_end = halves + scale_bytes(kType);
    for (int column = 0; column < kColumns; column += kWidth) {
      if (pass.ahead) prefetch_part<kPrefetch>(codes, block_end, column / kWidth, kColumns / kWidth);
      __m256i dot[kRows][kWidth];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < kWidth; ++c) dot[r][c] = broadcast_word(starts + r);
      }
      add_group<kType, kRows, kWidth>(codes + column * 32, table, inputs, group, dot);
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) {
        const int output = (column + c) * 8;
        const __m256 scale = load_halves(halves + output * 2);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const __m256 x_scale = _mm256_set1_ps(x_scales[r]);
          const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(dot[r][c]), x_scale);
          float* at = sums[r] + output;
          _mm256_store_ps(at, _mm256_fmadd_ps(product, scale, _mm256_load_ps(at)));
        }
      }
    }
    inputs += group * kRows * 2;
    starts += kRows;
    x_scales += kRows;
    codes = block_end;
  }
}

template <WeightType kType, int... kLess>
constexpr auto pass_kernels(std::integer_sequence<int, kLess...>) {
  return std::array<PassKernel, sizeof...(kLess)>{multiply_pass<kType, kLess + 1>...};
}

template <WeightType kType>
IntegerKernels kernels() {
  constexpr int kMost = most_rows(kType);
  static constexpr auto kByRows = pass_kernels<kType>(std::make_integer_sequence<int, kMost>{});
  return {
      .most_rows = kMost, .input_bytes = 2, .starts_per_group = 1, .fill = fill, .by_rows = kByRows.data()};
}

}  // namespace

IntegerKernels linear_bytes_kernels(WeightType type) {
  return type == WeightType::kLut4 ? kernels<WeightType::kLut4>() : kernels<WeightType::kInt8>();
}

}  // namespace redoubt::avx2

#pragma GCC pop_options
