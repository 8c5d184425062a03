// Integer weights times int8 activations: one pass over the packed bytes, codes unpacked in registers and
// used for up to kPassRows rows of one term. Bound by memory for one row, by the two multiplying pipes for
// many: for each group, row and 16 outputs they take group / 4 vpdpbusd, a multiplication, and one or two
// fused ones, so vpdpbusd's own peak can't be reached: 80 % of it with groups of 32 (73 % for asym_int4), 89
// (84) % with 64. Unpacking, converting and adding go to the other pipes.
//
// Measured, and no faster: 6 rows with every sum in registers; operands broadcast from memory within
// vpdpbusd; blocks of rows that stay in the second-level cache.
#include <immintrin.h>

#include "linear_avx512_vnni.h"
#include "row_passes.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c")

namespace redoubt::avx512_vnni {
namespace {

// 16 int32 sums of dot products, and the fp32 sums beside them or in memory; 9 to 12 rows were measured, and
// are slower. Two terms of a row count as two rows.
constexpr int kPassRows = 8;
constexpr int kStepInputs = 32;  // inputs of one unrolled step: every group is a multiple

// The inputs of a pass, which moves along them. The rows' second terms follow their first.
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

// int8 weights are twice the bytes for each multiplication: up to 4 rows the hardware follows them best
// alone, at 37 to 44 GB/s where kNear read 31 to 36 and kFar 33 to 37.
constexpr Prefetch prefetch_for(WeightType type, int rows) {
  return type == WeightType::kInt8 && rows <= 4 ? Prefetch::kNone : avx512_vnni::prefetch_for(rows);
}

// What multiplies the inputs: the codes themselves, or what they stand for in a table.
template <WeightType kType>
REDOUBT_INLINE __m512i factors(__m512i codes_u8x64, __m512i table_u8x16) {
  return kType == WeightType::kLut4 ? _mm512_shuffle_epi8(table_u8x16, codes_u8x64) : codes_u8x64;
}

template <WeightType kType, Prefetch kPrefetch, typename In>
REDOUBT_INLINE void step_int4(const uint8_t* codes, __m512i table, const In& x, Dots<In>& dot) {
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
REDOUBT_INLINE void step_int8(const uint8_t* codes, const In& x, Dots<In>& dot) {
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

// What a group's sum starts from: `start` is -8 s, and what a zero point of 0, 8 or 128 needs is 0, 1 or 16
// times that.
template <WeightType kType>
REDOUBT_INLINE __m512i first_sum(const int32_t* start) {
  if constexpr (kType == WeightType::kAsymInt4) return _mm512_setzero_si512();
  const __m512i start_i32x16 = _mm512_set1_epi32(*start);
  return kType == WeightType::kSymInt4 ? start_i32x16 : _mm512_slli_epi32(start_i32x16, 4);
}

// One tile's outputs of rows [row, row + kRows).
template <WeightType kType, int kRows, int kTerms>
void multiply_tile(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile, int row) {
  using In = Inputs<kRows, kTerms>;
  constexpr bool kInt8 = kType == WeightType::kInt8;
  constexpr Prefetch kPrefetch = prefetch_for(kType, In::kCount);
  constexpr int kStepBytes = kStepInputs * (kInt8 ? 32 : 16);
  const int groups = w.cols / w.group, steps = w.group / kStepInputs;
  // Flipping the top bit adds 128.
  const __m512i table =
      _mm512_xor_si512(_mm512_broadcast_i32x4(load_table(w)), _mm512_set1_epi8(int8_t(0x80)));
  const uint8_t* codes = w.tile(tile);
  In inputs;
  inputs.stride = x.cols;
  inputs.values[0] = x.values + int64_t(row) * x.cols;
  if constexpr (kTerms == 2) inputs.values[1] = x.low_values + int64_t(row) * x.cols;
  const float* x_scales = x.scales + int64_t(row) * groups;
  const int32_t* starts = x.starts + int64_t(row) * groups;
  const float* offsets = x.offsets + int64_t(row) * groups;

  if (In::kCount > kPassRows / 2 && y.elsewhere) {
    for (int r = 0; r < kRows; ++r) {
      const float* out = y.values + (row + r) * y.stride + tile * kTileOutputs;
      prefetch_to_write(out);
      prefetch_to_write(out + 16);
    }
  }

  __m512 acc[kRows][2];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) acc[r][0] = acc[r][1] = _mm512_setzero_ps();

  for (int j = 0; j < groups; ++j) {
    Dots<In> dot;
#pragma GCC unroll 8
    for (int i = 0; i < In::kCount; ++i) {
      // The last term's sum takes the start, and in the end the first term's, 256 times.
      const bool last = i / kRows == kTerms - 1;
      dot[i][0] = dot[i][1] =
          last ? first_sum<kType>(starts + int64_t(i % kRows) * groups + j) : _mm512_setzero_si512();
    }
    for (int step = 0; step < steps; ++step, codes += kStepBytes, inputs.advance()) {
      if constexpr (kInt8) {
        step_int8<kPrefetch>(codes, inputs, dot);
      } else {
        step_int4<kType, kPrefetch>(codes, table, inputs, dot);
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
    const __m512 scale0 = load_halves(codes), scale1 = load_halves(codes + 32);
    prefetch_weights<kPrefetch>(codes);
    codes += 64;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 x_scale = _mm512_set1_ps(x_scales[int64_t(r) * groups + j]);
      acc[r][0] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot[r][0]), x_scale), scale0, acc[r][0]);
      acc[r][1] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot[r][1]), x_scale), scale1, acc[r][1]);
    }
    if constexpr (kType == WeightType::kAsymInt4) {
      const __m512 minimum0 = load_halves(codes), minimum1 = load_halves(codes + 32);
      prefetch_weights<kPrefetch>(codes);
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

template <WeightType kType>
constexpr TermKernels<kPassRows> kTileKernels = {
    {multiply_tile<kType, 1, 1>, multiply_tile<kType, 2, 1>, multiply_tile<kType, 3, 1>,
     multiply_tile<kType, 4, 1>, multiply_tile<kType, 5, 1>, multiply_tile<kType, 6, 1>,
     multiply_tile<kType, 7, 1>, multiply_tile<kType, 8, 1>},
    {multiply_tile<kType, 1, 2>, multiply_tile<kType, 2, 2>, multiply_tile<kType, 3, 2>,
     multiply_tile<kType, 4, 2>}};

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

}  // namespace redoubt::avx512_vnni

#pragma GCC pop_options
