// Integer weights times int8 activations with AVX2. Its byte products, vpmaddubsw's, are added in pairs to 16
// bits, saturating; all kernels stay below that: int4 codes because they are small, int8 codes and lut4's
// entries by multiplying magnitudes of activations.
//
// A pass takes up to four rows through a block of tiles. Its inputs are first copied into a panel, in the
// order in which they are multiplied, which stays in the first-level cache while the tiles stream by: rows of
// a model are often a power of two apart, and would there displace each other.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <utility>

#include "linear_avx2.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace redoubt::avx2 {
namespace {

#define REDOUBT_INLINE [[gnu::always_inline]] inline

constexpr int kStepInputs = 32;     // every group is a multiple
constexpr int kPassRows = 4;        // of one term: two terms of a row count as two rows
constexpr int kPanelInputs = 2048;  // a multiple of every group
constexpr int kPanelGroups = kPanelInputs / kStepInputs;
constexpr int kBlockTiles = 8;
constexpr size_t kBlockBytes = 256 << 10;  // of weights that pass after pass reads: most of a small L2 cache

constexpr bool is_linear_int4(WeightType type) {
  return type == WeightType::kSymInt4 || type == WeightType::kAsymInt4;
}

// Some groups of a pass' rows. The rows of inputs are the rows' first terms, then their second.
struct Panel {
  alignas(64) int8_t inputs[kPanelInputs * kPassRows];   // [input / 8][row][8]
  alignas(64) int32_t starts[kPanelGroups * kPassRows];  // [span][row]: sym_int4, see packed_start
  alignas(64) float scales[kPanelGroups * kPassRows];    // [group][row]
  alignas(64) float offsets[kPanelGroups * kPassRows];   // [group][row]
};

// fp32 sums of a block's tiles between the panels, [tile][row][output].
using Sums = float[kBlockTiles][kPassRows][kTileOutputs];

// Inputs whose products with int4 codes are added up in 16 bits before they are widened. A 16-bit lane takes
// half of them. Without a zero point it holds 16 products of at most 15 * 128; sums of more products wrap
// around, which does no harm where the sum with the zero point, at most 32 * 8 * 127, fits. A second term may
// be -128.
constexpr int span_inputs(WeightType type, int terms, int group) {
  return type == WeightType::kSymInt4 && terms == 1 ? std::min(group, 64) : kStepInputs;
}

// Of a span's inputs -8 times the sum of those that the low 16-bit lanes take (k % 4 < 2), and of the others.
REDOUBT_INLINE int32_t packed_start(const int8_t* inputs, int count) {
  __m256i pairs = _mm256_setzero_si256();
  for (int k = 0; k < count; k += 32) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(inputs + k));
    pairs = _mm256_sub_epi16(pairs, _mm256_maddubs_epi16(_mm256_set1_epi8(8), bytes));
  }
  __m128i sum = _mm_add_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  sum = _mm_add_epi16(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(1, 0, 3, 2)));
  sum = _mm_add_epi16(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(2, 3, 0, 1)));
  return _mm_cvtsi128_si32(sum);
}

REDOUBT_INLINE void store_half(int8_t* at, __m128i bytes) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(at), bytes);
}

REDOUBT_INLINE __m256i load_inputs(const int8_t* inputs) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(inputs));
}

REDOUBT_INLINE void copy_inputs(const int8_t* const* rows, int count, int inputs, int8_t* to) {
  const int stride = count * 8;
  int row = 0;
  for (; row + 2 <= count; row += 2, to += 16) {
    for (int k = 0; k < inputs; k += 32) {
      const __m256i first = load_inputs(rows[row] + k), second = load_inputs(rows[row + 1] + k);
      const __m256i even = _mm256_unpacklo_epi64(first, second), odd = _mm256_unpackhi_epi64(first, second);
      int8_t* at = to + k / 8 * stride;
      store_half(at, _mm256_castsi256_si128(even));
      store_half(at + stride, _mm256_castsi256_si128(odd));
      store_half(at + 2 * stride, _mm256_extracti128_si256(even, 1));
      store_half(at + 3 * stride, _mm256_extracti128_si256(odd, 1));
    }
  }
  if (row < count) {
    for (int k = 0; k < inputs; k += 8) __builtin_memcpy(to + k / 8 * stride, rows[row] + k, 8);
  }
}

// Groups [first, first + groups) of rows [row, row + kRows).
template <WeightType kType, int kRows, int kTerms>
void fill_panel(const QuantizedRows& x, int row, int first, int groups, Panel& panel) {
  constexpr int kCount = kRows * kTerms;
  const int inputs = groups * x.group, span = span_inputs(kType, kTerms, x.group);
  const int8_t* rows[kCount];
  for (int i = 0; i < kCount; ++i) {
    rows[i] = (i < kRows ? x.values : x.low_values) + int64_t(row + i % kRows) * x.cols + first * x.group;
    if (kType != WeightType::kSymInt4) continue;
    for (int s = 0; s < inputs / span; ++s)
      panel.starts[s * kCount + i] = packed_start(rows[i] + s * span, span);
  }
  copy_inputs(rows, kCount, inputs, panel.inputs);
  for (int r = 0; r < kRows; ++r) {
    const int64_t from = int64_t(row + r) * (x.cols / x.group) + first;
    for (int j = 0; j < groups; ++j) {
      panel.scales[j * kRows + r] = x.scales[from + j];
      panel.offsets[j * kRows + r] = x.offsets[from + j];
    }
  }
}

// Keeps the compiler from making all products first and adding them up as a tree, for which there are not the
// registers.
REDOUBT_INLINE void keep_order(__m256i& sum) { __asm__("" : "+x"(sum)); }

// What a group of inputs gives in kWidth columns of eight outputs.
template <WeightType kType, int kGroup, int kTerms, int kCount, int kWidth>
REDOUBT_INLINE void group_int4(const uint8_t* codes, const int8_t* inputs, const int32_t* starts,
                               __m256i (&dot)[kCount][kWidth]) {
  constexpr int kSpan = span_inputs(kType, kTerms, kGroup);
  const __m256i low_nibble = _mm256_set1_epi8(15);
#pragma GCC unroll 4
  for (int span = 0; span < kGroup / kSpan; ++span, starts += kCount) {
    __m256i sums_i16x16[kCount][kWidth];
#pragma GCC unroll 8
    for (int kb = 0; kb < kSpan / 8; ++kb, codes += 128, inputs += kCount * 8) {
      __m256i low[kWidth], high[kWidth];
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) {
        const __m256i packed = load_codes(codes + c * 32);
        low[c] = _mm256_and_si256(packed, low_nibble);
        high[c] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low_nibble);
      }
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i) {
        const __m256i low_inputs = broadcast_word(inputs + i * 8);
        const __m256i high_inputs = broadcast_word(inputs + i * 8 + 4);
#pragma GCC unroll 4
        for (int c = 0; c < kWidth; ++c) {
          __m256i& sum = sums_i16x16[i][c];
          const __m256i pairs = _mm256_maddubs_epi16(low[c], low_inputs);
          if (kb > 0) {
            sum = _mm256_add_epi16(sum, pairs);
          } else {
            sum = kType == WeightType::kSymInt4 ? _mm256_add_epi16(broadcast_word(starts + i), pairs) : pairs;
          }
          keep_order(sum);
          sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(high[c], high_inputs));
          keep_order(sum);
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) {
        const __m256i wide = _mm256_madd_epi16(sums_i16x16[i][c], _mm256_set1_epi16(1));
        dot[i][c] = span == 0 ? wide : _mm256_add_epi32(dot[i][c], wide);
      }
    }
  }
}

// Adds x * w for signed bytes w: as |x| * (sign of x) * w, a pair of which is at most 2 * 128 * 127, within
// 16 bits.
template <int kCount, int kWidth>
REDOUBT_INLINE void add_signed(const __m256i (&weights_i8x32)[kWidth], const int8_t* inputs,
                               __m256i (&dot)[kCount][kWidth]) {
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i) {
    const __m256i x = broadcast_word(inputs + i * 8), magnitudes = _mm256_abs_epi8(x);
#pragma GCC unroll 4
    for (int c = 0; c < kWidth; ++c) {
      const __m256i pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(weights_i8x32[c], x));
      dot[i][c] = _mm256_add_epi32(dot[i][c], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
  }
}

// What a group of inputs gives.
template <WeightType kType, int kCount, int kWidth>
REDOUBT_INLINE void group_signed(const uint8_t* codes, __m256i table, const int8_t* inputs, int group,
                                 __m256i (&dot)[kCount][kWidth]) {
  const __m256i low_nibble = _mm256_set1_epi8(15), top_bit = _mm256_set1_epi8(int8_t(0x80));
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i) {
#pragma GCC unroll 4
    for (int c = 0; c < kWidth; ++c) dot[i][c] = _mm256_setzero_si256();
  }
  for (int k = 0; k < group; k += 8, inputs += kCount * 8) {
    __m256i first[kWidth], second[kWidth];
#pragma GCC unroll 4
    for (int c = 0; c < kWidth; ++c) {
      if constexpr (kType == WeightType::kInt8) {
        first[c] = _mm256_xor_si256(load_codes(codes + c * 32), top_bit);
        second[c] = _mm256_xor_si256(load_codes(codes + 128 + c * 32), top_bit);
      } else {
        const __m256i packed = load_codes(codes + c * 32);
        first[c] = _mm256_shuffle_epi8(table, _mm256_and_si256(packed, low_nibble));
        second[c] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(packed, 4), low_nibble));
      }
    }
    add_signed(first, inputs, dot);
    add_signed(second, inputs + 4, dot);
    codes += kType == WeightType::kInt8 ? 256 : 128;
  }
}

// The panel, of which the compiler knows no value: what it would keep for the next columns is in memory
// again.
REDOUBT_INLINE const Panel& fetched_anew(const Panel& panel) {
  const Panel* same = &panel;
  __asm__ volatile("" : "+r"(same));
  return *same;
}

// Adds to a tile's sums what the panel's groups give, whose weights begin at `codes`. ahead: whether what
// follows them is to be read for the first time. kGroup: of linear int4 types, for which it is known here.
template <WeightType kType, int kGroup, int kRows, int kTerms>
void add_tile(const uint8_t* codes, const PackedMatrix& w, const Panel& panel, int groups, bool ahead,
              float (&sums)[kPassRows][kTileOutputs]) {
  constexpr int kCount = kRows * kTerms;
  // Columns of eight outputs at once: as many as leave their sums in registers.
  constexpr int kWidth = kCount > 1 ? 2 : 4;
  const int group = is_linear_int4(kType) ? kGroup : w.group;
  const size_t code_bytes = size_t(group) * (kType == WeightType::kInt8 ? 32 : 16);
  const __m256i table = load_table(w);
  for (int j = 0; j < groups; ++j) {
    const uint8_t* scales = codes + code_bytes;
    if (ahead) {
      for (const uint8_t* line = codes; line < scales; line += 64) prefetch_weights<Prefetch::kNear>(line);
    }
    for (int column = 0; column < kColumns; column += kWidth) {
      const Panel& x = fetched_anew(panel);
      const int8_t* inputs = x.inputs + j * group * kCount;
      __m256i dot[kCount][kWidth];
      if constexpr (is_linear_int4(kType)) {
        const int32_t* starts = x.starts + j * (kGroup / span_inputs(kType, kTerms, kGroup)) * kCount;
        group_int4<kType, kGroup, kTerms>(codes + column * 32, inputs, starts, dot);
      } else {
        group_signed<kType, kCount, kWidth>(codes + column * 32, table, inputs, group, dot);
      }
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) {
        const uint8_t* scale_halves = scales + (column + c) * 16;
        const __m256 scale = load_halves(scale_halves);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          __m256i sum = dot[r][c];
          if constexpr (kTerms == 2) sum = _mm256_add_epi32(_mm256_slli_epi32(sum, 8), dot[kRows + r][c]);
          const __m256 x_scale = _mm256_set1_ps(x.scales[j * kRows + r]);
          const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), x_scale);
          float* at = sums[r] + (column + c) * 8;
          __m256 total = _mm256_fmadd_ps(product, scale, _mm256_load_ps(at));
          if constexpr (kType == WeightType::kAsymInt4) {
            const __m256 x_offset = _mm256_set1_ps(x.offsets[j * kRows + r]);
            total = _mm256_fmadd_ps(x_offset, load_halves(scale_halves + 64), total);
          }
          _mm256_store_ps(at, total);
        }
      }
    }
    codes = scales + (kType == WeightType::kAsymInt4 ? 128 : 64);
  }
}

// Tiles [tile_begin, tile_end), at most kBlockTiles, of rows [row, row + kRows).
template <WeightType kType, int kGroup, int kRows, int kTerms>
void multiply_block(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                    int tile_end, int row) {
  Panel panel;
  alignas(64) Sums sums;
  for (int t = 0; t < tile_end - tile_begin; ++t) {
    for (int r = 0; r < kRows; ++r) std::fill_n(sums[t][r], kTileOutputs, 0.0f);
  }
  const int groups = w.cols / w.group, most = kPanelInputs / w.group;
  for (int first = 0; first < groups; first += most) {
    const int count = std::min(most, groups - first);
    fill_panel<kType, kRows, kTerms>(x, row, first, count, panel);
    for (int tile = tile_begin; tile < tile_end; ++tile) {
      const uint8_t* codes = w.tile(tile) + w.block_bytes() * size_t(first);
      add_tile<kType, kGroup, kRows, kTerms>(codes, w, panel, count, row == 0, sums[tile - tile_begin]);
    }
  }
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kColumns; ++c) {
        const __m256 sum = _mm256_load_ps(sums[tile - tile_begin][r] + c * 8);
        write_outputs(w, y, row + r, tile * kTileOutputs + c * 8, sum);
      }
    }
  }
}

using BlockKernel = void (*)(const PackedMatrix&, const QuantizedRows&, const LinearOutput&, int tile_begin,
                             int tile_end, int row);

// By rows less one.
template <WeightType kType, int kGroup, int kTerms, int... kLess>
constexpr auto block_kernels(std::integer_sequence<int, kLess...>) {
  return std::array<BlockKernel, sizeof...(kLess)>{multiply_block<kType, kGroup, kLess + 1, kTerms>...};
}

template <WeightType kType, int kGroup, int kTerms>
void multiply_rows(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                   int tile_end) {
  constexpr int kMost = kPassRows / kTerms;
  static constexpr auto kKernels =
      block_kernels<kType, kGroup, kTerms>(std::make_integer_sequence<int, kMost>{});
  const int passes = (x.rows + kMost - 1) / kMost;
  const int fitting = int(std::max<size_t>(kBlockBytes / w.tile_bytes(), 2));
  const int tiles = passes > 1 ? std::min(fitting, kBlockTiles) : kBlockTiles;
  for (int first = tile_begin; first < tile_end; first += tiles) {
    for (int pass = 0; pass < passes; ++pass) {  // nearly the same size
      const int begin = x.rows * pass / passes, end = x.rows * (pass + 1) / passes;
      kKernels[size_t(end - begin - 1)](w, x, y, first, std::min(first + tiles, tile_end), begin);
    }
  }
}

template <WeightType kType, int kGroup = 0>
void multiply(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
              int tile_end) {
  const auto run =
      x.low_values == nullptr ? multiply_rows<kType, kGroup, 1> : multiply_rows<kType, kGroup, 2>;
  run(w, x, y, tile_begin, tile_end);
}

template <WeightType kType>
void multiply_int4(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                   int tile_end) {
  switch (w.group) {
    case 32:
      return multiply<kType, 32>(w, x, y, tile_begin, tile_end);
    case 64:
      return multiply<kType, 64>(w, x, y, tile_begin, tile_end);
    default:
      return multiply<kType, 128>(w, x, y, tile_begin, tile_end);
  }
}

}  // namespace

void linear_int8(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end) {
  switch (w.type) {
    case WeightType::kSymInt4:
      return multiply_int4<WeightType::kSymInt4>(w, x, y, tile_begin, tile_end);
    case WeightType::kAsymInt4:
      return multiply_int4<WeightType::kAsymInt4>(w, x, y, tile_begin, tile_end);
    case WeightType::kLut4:
      return multiply<WeightType::kLut4>(w, x, y, tile_begin, tile_end);
    default:
      return multiply<WeightType::kInt8>(w, x, y, tile_begin, tile_end);
  }
}

}  // namespace redoubt::avx2

#pragma GCC pop_options
