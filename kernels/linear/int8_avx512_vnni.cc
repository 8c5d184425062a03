// Integer weights times int8 activations with AVX-512 VNNI. A pass multiplies up to kPassRows rows of one
// term with a tile's packed bytes and unpacks the codes in registers. One row is bound by memory. Many rows
// are bound by the two pipes that multiply: for each group, row and 16 outputs these execute group / 4
// vpdpbusd, a multiplication, one or two fused multiply-adds and, on some processors, a conversion. So the
// peak of vpdpbusd cannot be reached.
//
// AMD's cores unpack, convert and add in other pipes. Intel's have only those two for 512 bits, so there the
// first pass of many rows keeps the unpacked weights for the other passes. Gains, limits and what else was
// tried are in docs/tuning.md.
#include <immintrin.h>

#include <algorithm>
#include <utility>

#include "linear/avx512_vnni.h"
#include "linear/row_passes.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c")

namespace redoubt::avx512_vnni {
namespace {

using avx512::broadcast_inputs;
using avx512::load_codes;
using avx512::load_halves;
using avx512::load_table;
using avx512::prefetch_to_write;
using avx512::write_outputs;

// 16 int32 sums of dot products, beside fp32 sums in registers or in memory. Two terms of a row count as two
// rows. More rows are slower (docs/tuning.md).
constexpr int kPassRows = 8;
constexpr int kStepInputs = 32;  // inputs of one unrolled step: every group is a multiple

// Where a pass reads weights.
enum class Weights {
  kPacked,
  kUnpacking,  // packed, and writes them unpacked to an UnpackedPanel: int4
  kUnpacked,   // the panel
};

// Unpacked weights of some inputs of a tile. Fewer inputs would fit the first-level cache, but are slower
// (docs/tuning.md).
constexpr int kPanelInputs = 2048;  // a multiple of every group
constexpr int kPanelGroups = kPanelInputs / kStepInputs;
constexpr int kPanelRows = 128;
struct UnpackedPanel {
  alignas(64) uint8_t codes[kPanelInputs * kTileOutputs];  // [input / 4][output][input % 4]
  alignas(64) float scales[kPanelGroups][kTileOutputs];
  alignas(64) float minima[kPanelGroups][kTileOutputs];
  alignas(64) float sums[kPanelRows][kTileOutputs];  // of the panels before
};

// Some rows and, with a panel, some groups of inputs. Sums start from 0 or from the panel's, and end in the
// panel or in y. Without a panel a pass multiplies all groups.
struct Pass {
  int row = 0, panel_row = 0;  // the first one in x, and of the panel's sums
  int first_group = 0, groups = 0;
  UnpackedPanel* panel = nullptr;
};

// The inputs of a pass, from its current step on. All first terms come first, then all second terms.
template <int kRows, int kTerms>
struct Inputs {
  static constexpr int kCount = kRows * kTerms;
  const int8_t* values[kTerms];
  int64_t stride;

  REDOUBT_INLINE const int8_t* row(int i) const { return values[i / kRows] + (i % kRows) * stride; }
  REDOUBT_INLINE void advance() {
    for (const int8_t*& term : values) term += kStepInputs;
  }
};

template <typename In>
using Dots = __m512i[In::kCount][2];

// int8 weights take twice the bytes for each multiplication. Up to 4 rows the hardware's own prefetching is
// the fastest (docs/tuning.md).
constexpr Prefetch prefetch_for(WeightType type, int rows) {
  return type == WeightType::kInt8 && rows <= 4 ? Prefetch::kNone : avx512::prefetch_for(rows);
}

// What the inputs are multiplied with: the codes themselves, or their entries in a table.
template <WeightType kType>
REDOUBT_INLINE __m512i factors(__m512i codes_u8x64, __m512i table_u8x16) {
  return kType == WeightType::kLut4 ? _mm512_shuffle_epi8(table_u8x16, codes_u8x64) : codes_u8x64;
}

// The table of a lut4 matrix, each entry plus 128.
REDOUBT_INLINE __m512i table_of(const PackedMatrix& w) {
  // Flipping the top bit adds 128.
  return _mm512_xor_si512(_mm512_broadcast_i32x4(load_table(w)), _mm512_set1_epi8(int8_t(0x80)));
}

// kKeep: writes the codes to `kept`.
template <WeightType kType, Prefetch kPrefetch, bool kKeep, typename In>
REDOUBT_INLINE void step_int4(const uint8_t* codes, __m512i table, const In& x, Dots<In>& dot,
                              uint8_t* kept) {
  const __m512i low_nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (int kb = 0; kb < kStepInputs / 8; ++kb) {
    const __m512i codes0 = load_codes(codes + kb * 128), codes1 = load_codes(codes + kb * 128 + 64);
    prefetch_weights<kPrefetch>(codes + kb * 128);
    prefetch_weights<kPrefetch>(codes + kb * 128 + 64);
    const __m512i low0 = factors<kType>(_mm512_and_si512(codes0, low_nibble), table);
    const __m512i low1 = factors<kType>(_mm512_and_si512(codes1, low_nibble), table);
    const __m512i high0 = factors<kType>(_mm512_and_si512(_mm512_srli_epi16(codes0, 4), low_nibble), table);
    const __m512i high1 = factors<kType>(_mm512_and_si512(_mm512_srli_epi16(codes1, 4), low_nibble), table);
    if constexpr (kKeep) {
      _mm512_store_si512(kept + kb * 256, low0);
      _mm512_store_si512(kept + kb * 256 + 64, low1);
      _mm512_store_si512(kept + kb * 256 + 128, high0);
      _mm512_store_si512(kept + kb * 256 + 192, high1);
    }
#pragma GCC unroll 8
    for (int i = 0; i < In::kCount; ++i) {
      const __m512i x_low = broadcast_inputs(x.row(i) + kb * 8);
      add_dot(dot[i][0], low0, x_low);
      add_dot(dot[i][1], low1, x_low);
    }
#pragma GCC unroll 8
    for (int i = 0; i < In::kCount; ++i) {
      const __m512i x_high = broadcast_inputs(x.row(i) + kb * 8 + 4);
      add_dot(dot[i][0], high0, x_high);
      add_dot(dot[i][1], high1, x_high);
    }
  }
}

template <Prefetch kPrefetch, typename In>
REDOUBT_INLINE void step_bytes(const uint8_t* codes, const In& x, Dots<In>& dot) {
#pragma GCC unroll 8
  for (int kb = 0; kb < kStepInputs / 4; ++kb) {
    const __m512i codes0 = load_codes(codes + kb * 128), codes1 = load_codes(codes + kb * 128 + 64);
    prefetch_weights<kPrefetch>(codes + kb * 128);
    prefetch_weights<kPrefetch>(codes + kb * 128 + 64);
#pragma GCC unroll 8
    for (int i = 0; i < In::kCount; ++i) {
      const __m512i x_step = broadcast_inputs(x.row(i) + kb * 4);
      add_dot(dot[i][0], codes0, x_step);
      add_dot(dot[i][1], codes1, x_step);
    }
  }
}

// What a group's sum starts from. `start` is -8 s; zero points of 0, 8 and 128 need 0, 1 and 16 times that.
template <WeightType kType>
REDOUBT_INLINE __m512i first_sum(const int32_t* start) {
  if constexpr (kType == WeightType::kAsymInt4) return _mm512_setzero_si512();
  const __m512i start_i32x16 = _mm512_set1_epi32(*start);
  return kType == WeightType::kSymInt4 ? start_i32x16 : _mm512_slli_epi32(start_i32x16, 4);
}

// A group's 32 scales or minima as fp32, from the packed weights or from the panel.
template <Weights kWeights, Prefetch kPrefetch>
REDOUBT_INLINE void load_outputs(const uint8_t*& packed, float* kept, __m512 (&to)[2]) {
#pragma GCC unroll 2
  for (int c = 0; c < 2; ++c) {
    to[c] = kWeights == Weights::kUnpacked ? _mm512_load_ps(kept + c * 16) : load_halves(packed + c * 32);
    if constexpr (kWeights == Weights::kUnpacking) _mm512_store_ps(kept + c * 16, to[c]);
  }
  if constexpr (kWeights != Weights::kUnpacked) {
    prefetch_weights<kPrefetch>(packed);
    packed += 64;
  }
}

// One tile's outputs of kRows rows.
template <WeightType kType, int kRows, int kTerms, Weights kWeights>
void multiply_tile(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile,
                   const Pass& pass) {
  using In = Inputs<kRows, kTerms>;
  constexpr bool kIsWhole = kWeights == Weights::kPacked;
  constexpr bool kBytes = kType == WeightType::kInt8 || kWeights == Weights::kUnpacked;
  constexpr Prefetch kPrefetch =
      kWeights == Weights::kUnpacked ? Prefetch::kNone : prefetch_for(kType, In::kCount);
  constexpr int kStepBytes = kStepInputs * (kBytes ? 32 : 16);
  const int row_groups = w.cols / w.group, steps = w.group / kStepInputs;
  const int first = kIsWhole ? 0 : pass.first_group, groups = kIsWhole ? row_groups : pass.groups;
  const bool begins = kIsWhole || first == 0, ends = kIsWhole || first + groups == row_groups;
  const __m512i table = table_of(w);
  uint8_t* kept = kIsWhole ? nullptr : pass.panel->codes;
  // Packed weights of a group are its codes, then its scales and minima.
  const uint8_t* codes = kWeights == Weights::kUnpacked ? kept : w.tile(tile) + first * w.block_bytes();
  const int64_t first_value = int64_t(pass.row) * x.cols + first * w.group,
                first_group = int64_t(pass.row) * row_groups + first;
  In inputs;
  inputs.stride = x.cols;
  inputs.values[0] = x.values + first_value;
  if constexpr (kTerms == 2) inputs.values[1] = x.low_values + first_value;
  const float* x_scales = x.scales + first_group;
  const int32_t* starts = x.starts + first_group;
  const float* offsets = x.offsets + first_group;
  float (*const sums)[kTileOutputs] = kIsWhole ? nullptr : pass.panel->sums + pass.panel_row;

  if (In::kCount > kPassRows / 2 && ends && y.elsewhere) {
    for (int r = 0; r < kRows; ++r) {
      const float* out = y.values + (pass.row + r) * y.stride + tile * kTileOutputs;
      prefetch_to_write(out);
      prefetch_to_write(out + 16);
    }
  }

  __m512 acc[kRows][2];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) acc[r][c] = begins ? _mm512_setzero_ps() : _mm512_load_ps(sums[r] + c * 16);
  }

  for (int j = 0; j < groups; ++j) {
    Dots<In> dot;
#pragma GCC unroll 8
    for (int i = 0; i < In::kCount; ++i) {
      // The sum of the last term begins with the start; in the end 256 times the first term's sum is added.
      const bool last = i / kRows == kTerms - 1;
      dot[i][0] = dot[i][1] =
          last ? first_sum<kType>(starts + int64_t(i % kRows) * row_groups + j) : _mm512_setzero_si512();
    }
    for (int step = 0; step < steps;
         ++step, codes += kStepBytes, kept += kStepInputs * kTileOutputs, inputs.advance()) {
      if constexpr (kBytes) {
        step_bytes<kPrefetch>(codes, inputs, dot);
      } else {
        step_int4<kType, kPrefetch, kWeights == Weights::kUnpacking>(codes, table, inputs, dot, kept);
      }
    }
    if constexpr (kTerms == 2) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < 2; ++c) {
          dot[r][c] = _mm512_add_epi32(_mm512_slli_epi32(dot[r][c], 8), dot[kRows + r][c]);
        }
      }
    }
    __m512 scales[2];
    load_outputs<kWeights, kPrefetch>(codes, kIsWhole ? nullptr : pass.panel->scales[j], scales);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 x_scale = _mm512_set1_ps(x_scales[int64_t(r) * row_groups + j]);
#pragma GCC unroll 2
      for (int c = 0; c < 2; ++c) {
        acc[r][c] =
            _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot[r][c]), x_scale), scales[c], acc[r][c]);
      }
    }
    if constexpr (kType == WeightType::kAsymInt4) {
      __m512 minima[2];
      load_outputs<kWeights, kPrefetch>(codes, kIsWhole ? nullptr : pass.panel->minima[j], minima);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512 x_offset = _mm512_set1_ps(offsets[int64_t(r) * row_groups + j]);
        acc[r][0] = _mm512_fmadd_ps(x_offset, minima[0], acc[r][0]);
        acc[r][1] = _mm512_fmadd_ps(x_offset, minima[1], acc[r][1]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) {
      if (ends) {
        write_outputs(w, y, pass.row + r, tile * kTileOutputs + c * 16, acc[r][c]);
      } else {
        _mm512_store_ps(sums[r] + c * 16, acc[r][c]);
      }
    }
  }
}

using PassKernel = decltype(&multiply_tile<WeightType::kSymInt4, 1, 1, Weights::kPacked>);

// Indexed by the number of rows minus one.
template <WeightType kType, int kTerms, Weights kWeights, size_t... kIndex>
PassKernel tile_kernel(int rows, std::index_sequence<kIndex...>) {
  static constexpr PassKernel kByRows[] = {multiply_tile<kType, int(kIndex) + 1, kTerms, kWeights>...};
  return kByRows[rows - 1];
}

template <WeightType kType, int kTerms>
PassKernel tile_kernel(Weights weights, int rows) {
  constexpr auto kRows = std::make_index_sequence<kPassRows / kTerms>();
  if constexpr (kType != WeightType::kInt8) {
    if (weights == Weights::kUnpacking) return tile_kernel<kType, kTerms, Weights::kUnpacking>(rows, kRows);
    if (weights == Weights::kUnpacked) return tile_kernel<kType, kTerms, Weights::kUnpacked>(rows, kRows);
  }
  return tile_kernel<kType, kTerms, Weights::kPacked>(rows, kRows);
}

// One tile times rows [begin, begin + rows), at most kPanelRows.
template <WeightType kType, int kTerms>
void multiply_unpacked(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile,
                       int begin, int rows, UnpackedPanel& panel) {
  const int row_groups = w.cols / w.group, panel_groups = kPanelInputs / w.group;
  for (int first = 0; first < row_groups; first += panel_groups) {
    const int groups = std::min(panel_groups, row_groups - first);
    in_passes(rows, kPassRows / kTerms, [&](int row, int end) {
      const Weights weights = row == 0 ? Weights::kUnpacking : Weights::kUnpacked;
      const Pass pass{
          .row = begin + row, .panel_row = row, .first_group = first, .groups = groups, .panel = &panel};
      tile_kernel<kType, kTerms>(weights, end - row)(w, x, y, tile, pass);
    });
  }
}

template <WeightType kType, int kTerms>
void multiply_unpacked(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                       int tile_end) {
  UnpackedPanel panel;
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    for (int row = 0; row < x.rows; row += kPanelRows) {
      multiply_unpacked<kType, kTerms>(w, x, y, tile, row, std::min(kPanelRows, x.rows - row), panel);
    }
  }
}

template <WeightType kType, int kTerms>
void multiply_tiles(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                    int tile_end, bool keeps) {
  constexpr int kMost = kPassRows / kTerms;
  if (kType != WeightType::kInt8 && x.rows > kMost && keeps) {
    return multiply_unpacked<kType, kTerms>(w, x, y, tile_begin, tile_end);
  }
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    in_passes(x.rows, kMost, [&](int row, int end) {
      tile_kernel<kType, kTerms>(Weights::kPacked, end - row)(w, x, y, tile, {.row = row});
    });
  }
}

template <WeightType kType>
void multiply_tiles(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                    int tile_end, bool keeps) {
  if (x.low_values == nullptr) {
    multiply_tiles<kType, 1>(w, x, y, tile_begin, tile_end, keeps);
  } else {
    multiply_tiles<kType, 2>(w, x, y, tile_begin, tile_end, keeps);
  }
}

}  // namespace

bool unpacks_in_multipliers() {
  static const bool is_intel = is_intel_cpu();
  return is_intel;
}

void linear_int8(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end, bool keeps) {
  with_integer_type(w.type, [&](auto type) { multiply_tiles<type()>(w, x, y, tile_begin, tile_end, keeps); });
}

void linear_int8(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end) {
  linear_int8(w, x, y, tile_begin, tile_end, unpacks_in_multipliers());
}

}  // namespace redoubt::avx512_vnni

#pragma GCC pop_options
