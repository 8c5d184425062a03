// Integer weights times int8 activations with AVX2. Its byte products are added in pairs to 16 bits,
// saturating; both kernels stay below that: int4 codes because they are small, int8 codes by multiplying
// magnitudes of activations.
#include <immintrin.h>

#include "linear_int8_avx2.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace redoubt::avx2 {
namespace {

template <int kCount>
[[gnu::always_inline]] inline void step_int4(const uint8_t* codes, const Rows<kCount>& rows, int k,
                                             __m256i (&dot)[kCount][kColumns]) {
  const __m256i low_nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
  for (int c = 0; c < kColumns; ++c) {
    __m256i low[4], high[4];
#pragma GCC unroll 4
    for (int kb = 0; kb < 4; ++kb) {
      const __m256i packed = load_codes(codes + kb * 128 + c * 32);
      low[kb] = _mm256_and_si256(packed, low_nibble);
      high[kb] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low_nibble);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
      const int8_t* values = rows[r] + k;
      // Eight pairs of products, each at most 15 * 128: 30720 in all, within 16 bits.
      __m256i sum_i16x16 = _mm256_setzero_si256();
#pragma GCC unroll 4
      for (int kb = 0; kb < 4; ++kb) {
        const __m256i pairs_low = _mm256_maddubs_epi16(low[kb], broadcast_inputs(values + kb * 8));
        const __m256i pairs_high = _mm256_maddubs_epi16(high[kb], broadcast_inputs(values + kb * 8 + 4));
        sum_i16x16 = _mm256_add_epi16(sum_i16x16, _mm256_add_epi16(pairs_low, pairs_high));
      }
      dot[r][c] = _mm256_add_epi32(dot[r][c], _mm256_madd_epi16(sum_i16x16, ones));
    }
  }
}

// Adds x * w for signed bytes w: as |x| * (sign of x) * w, a pair of which is at most 2 * 128 * 127, within
// 16 bits.
template <int kCount>
[[gnu::always_inline]] inline void add_signed(const __m256i (&weights_i8x32)[kColumns],
                                              const Rows<kCount>& rows, int k,
                                              __m256i (&dot)[kCount][kColumns]) {
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
  for (int r = 0; r < kCount; ++r) {
    const __m256i inputs = broadcast_inputs(rows[r] + k), magnitudes = _mm256_abs_epi8(inputs);
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const __m256i pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(weights_i8x32[c], inputs));
      dot[r][c] = _mm256_add_epi32(dot[r][c], _mm256_madd_epi16(pairs, ones));
    }
  }
}

template <int kCount>
[[gnu::always_inline]] inline void step_int8(const uint8_t* codes, const Rows<kCount>& rows, int k,
                                             __m256i (&dot)[kCount][kColumns]) {
  const __m256i top_bit = _mm256_set1_epi8(int8_t(0x80));
#pragma GCC unroll 2
  for (int kb = 0; kb < kStepInputs / 4; ++kb) {
    __m256i weights[kColumns];
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c)
      weights[c] = _mm256_xor_si256(load_codes(codes + kb * 128 + c * 32), top_bit);
    add_signed<kCount>(weights, rows, k + kb * 4, dot);
  }
}

template <int kCount>
[[gnu::always_inline]] inline void step_lut4(const uint8_t* codes, __m256i table, const Rows<kCount>& rows,
                                             int k, __m256i (&dot)[kCount][kColumns]) {
  const __m256i low_nibble = _mm256_set1_epi8(15);
#pragma GCC unroll 2
  for (int kb = 0; kb < kStepInputs / 8; ++kb) {
    __m256i low[kColumns], high[kColumns];
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const __m256i packed = load_codes(codes + kb * 128 + c * 32);
      low[c] = _mm256_shuffle_epi8(table, _mm256_and_si256(packed, low_nibble));
      high[c] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(packed, 4), low_nibble));
    }
    add_signed<kCount>(low, rows, k + kb * 8, dot);
    add_signed<kCount>(high, rows, k + kb * 8 + 4, dot);
  }
}

// One tile's outputs of rows [row, row + kRows).
template <WeightType kType, int kRows, int kTerms>
void multiply_tile(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile, int row) {
  constexpr bool kInt8 = kType == WeightType::kInt8;
  constexpr int kStepBytes = kStepInputs * (kInt8 ? 32 : 16);
  const int groups = w.cols / w.group, steps = w.group / kStepInputs;
  const uint8_t* codes = w.tile(tile);
  const __m256i table = load_table(w);
  constexpr int kCount = kRows * kTerms;
  const int8_t* rows[kCount];
  for (int i = 0; i < kCount; ++i) {
    rows[i] = (i < kRows ? x.values : x.low_values) + int64_t(row + i % kRows) * x.cols;
  }
  const float* x_scales = x.scales + int64_t(row) * groups;
  const int32_t* starts = x.starts + int64_t(row) * groups;
  const float* offsets = x.offsets + int64_t(row) * groups;

  __m256 acc[kRows][kColumns] = {};
  for (int j = 0; j < groups; ++j) {
    __m256i dot[kCount][kColumns];
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      // The last term's sum takes the start, and in the end the first term's, 256 times.
      const bool starts_here = kType == WeightType::kSymInt4 && i / kRows == kTerms - 1;
      const __m256i start =
          starts_here ? _mm256_set1_epi32(starts[int64_t(i % kRows) * groups + j]) : _mm256_setzero_si256();
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) dot[i][c] = start;
    }
    for (int step = 0; step < steps; ++step, codes += kStepBytes) {
      const int k = j * w.group + step * kStepInputs;

      for (int line = 0; line < kStepBytes; line += 64) prefetch_weights<Prefetch::kNear>(codes + line);
      if constexpr (kInt8) {
        step_int8<kCount>(codes, rows, k, dot);
      } else if constexpr (kType == WeightType::kLut4) {
        step_lut4<kCount>(codes, table, rows, k, dot);
      } else {
        step_int4<kCount>(codes, rows, k, dot);
      }
    }
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const __m256 scale = load_halves(codes + c * 16);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const int64_t at = int64_t(r) * groups + j;
        __m256i sum = dot[r][c];
        if constexpr (kTerms == 2) sum = _mm256_add_epi32(_mm256_slli_epi32(sum, 8), dot[kRows + r][c]);
        const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(x_scales[at]));
        acc[r][c] = _mm256_fmadd_ps(product, scale, acc[r][c]);
        if constexpr (kType == WeightType::kAsymInt4) {
          const __m256 x_offset = _mm256_set1_ps(offsets[at]);
          acc[r][c] = _mm256_fmadd_ps(x_offset, load_halves(codes + 64 + c * 16), acc[r][c]);
        }
      }
    }
    codes += kType == WeightType::kAsymInt4 ? 128 : 64;
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) write_outputs(w, y, row + r, tile * kTileOutputs + c * 8, acc[r][c]);
  }
}

template <WeightType kType>
constexpr TermKernels<kPassRows> kTileKernels = {{multiply_tile<kType, 1, 1>, multiply_tile<kType, 2, 1>,
                                                  multiply_tile<kType, 3, 1>, multiply_tile<kType, 4, 1>},
                                                 {multiply_tile<kType, 1, 2>, multiply_tile<kType, 2, 2>}};

const TermKernels<kPassRows>& tile_kernels(WeightType type) {
  switch (type) {
    case WeightType::kSymInt4:
      return kTileKernels<WeightType::kSymInt4>;
    case WeightType::kAsymInt4:
      return kTileKernels<WeightType::kAsymInt4>;
    case WeightType::kLut4:
      return kTileKernels<WeightType::kLut4>;
    default:
      return kTileKernels<WeightType::kInt8>;
  }
}

}  // namespace

void linear_int8(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end) {
  multiply_in_passes(tile_kernels(w.type), w, x, y, tile_begin, tile_end);
}

}  // namespace redoubt::avx2

#pragma GCC pop_options
