// Integer weights times many rows (prefill, large batches). A panel is 64 outputs, two tiles. A slice of its
// inputs is unpacked once to bytes in the first-level cache, in the order that vpdpbusd takes (and tdpbusd
// would), and all rows pass over it, six at a time: 24 sums stay in registers, and each broadcast input
// serves four of them.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "linear_avx512_vnni.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c")

namespace redoubt::avx512_vnni {
namespace {

constexpr int kPanelTiles = 2;
constexpr int kPanelOutputs = kPanelTiles * kTileOutputs;
constexpr int kRegisterRows =
    6;  // 6 rows x 4 columns of sums, 4 columns of codes and a broadcast: 29 registers
// 64 outputs x 256 inputs are 16 KiB of codes: half of the first-level cache.
constexpr int kSliceInputs = 256;
constexpr int kSliceGroups = kSliceInputs / 32;
// Rows that share one unpacking: their fp32 sums (256 bytes a row) stay in the second-level cache.
constexpr int kChunkRows = 512;

// A slice of a panel, ready to multiply.
struct Slice {
  const uint8_t* codes[kPanelTiles];  // per tile [groups][group / 4][32 outputs][4 inputs]
  size_t group_stride;                // bytes from one group's codes to the next group's
  const float* scales;                // [groups][64]
  const float* minima;                // [groups][64], asym_int4
  int groups;
  // Where the next slice's packed bytes begin: asked for while this one is multiplied.
  const uint8_t* next[kPanelTiles];
};

struct Scratch {
  alignas(64) uint8_t codes[kPanelTiles][kSliceInputs * kTileOutputs];
  alignas(64) float scales[kSliceGroups][kPanelOutputs];
  alignas(64) float minima[kSliceGroups][kPanelOutputs];
  // Then the fp32 sums of a chunk: float [rows][64].
  float* sums() { return reinterpret_cast<float*>(this + 1); }
};

void unpack_nibbles(const uint8_t* packed, int group, uint8_t* codes) {
  const __m512i low_nibble = _mm512_set1_epi8(15);
  for (int kb = 0; kb < group / 8; ++kb, packed += 128, codes += 256) {
    const __m512i codes0 = load_codes(packed), codes1 = load_codes(packed + 64);
    _mm512_store_si512(codes, _mm512_and_si512(codes0, low_nibble));
    _mm512_store_si512(codes + 64, _mm512_and_si512(codes1, low_nibble));
    _mm512_store_si512(codes + 128, _mm512_and_si512(_mm512_srli_epi16(codes0, 4), low_nibble));
    _mm512_store_si512(codes + 192, _mm512_and_si512(_mm512_srli_epi16(codes1, 4), low_nibble));
  }
}

// Makes a slice of groups [group_begin, group_begin + groups) of `tiles` tiles. int8 codes are used where
// they lie.
Slice make_slice(const PackedMatrix& w, int tile_begin, int tiles, int group_begin, int groups,
                 Scratch& scratch) {
  const bool int8 = w.type == WeightType::kInt8;
  const size_t code_bytes = size_t(w.group) * (int8 ? 32 : 16), unpacked_bytes = size_t(w.group) * 32;
  Slice slice{{}, int8 ? w.block_bytes() : unpacked_bytes, scratch.scales[0], scratch.minima[0], groups, {}};
  for (int t = 0; t < tiles; ++t) {
    const uint8_t* block = w.tile(tile_begin + t) + w.block_bytes() * size_t(group_begin);
    slice.codes[t] = int8 ? block : scratch.codes[t];
    for (int j = 0; j < groups; ++j, block += w.block_bytes()) {
      if (!int8) unpack_nibbles(block, w.group, scratch.codes[t] + unpacked_bytes * size_t(j));
      float* scales = scratch.scales[j] + t * kTileOutputs;
      _mm512_store_ps(scales, load_halves(block + code_bytes));
      _mm512_store_ps(scales + 16, load_halves(block + code_bytes + 32));
      if (w.type != WeightType::kAsymInt4) continue;
      float* minima = scratch.minima[j] + t * kTileOutputs;
      _mm512_store_ps(minima, load_halves(block + code_bytes + 64));
      _mm512_store_ps(minima + 16, load_halves(block + code_bytes + 96));
    }
    slice.next[t] = block;
  }
  return slice;
}

// Adds a slice's groups to the fp32 sums of rows [row, row + kRows): sums [kRows][64]. `pass` counts the
// calls for a slice, to share out the prefetching.
template <WeightType kType, int kTiles, int kRows>
void multiply_rows(const Slice& slice, const QuantizedRows& x, int row, int group_begin, int pass,
                   float* sums) {
  constexpr int kColumns = kTiles * 2;
  constexpr int kZeroPoint = kType == WeightType::kInt8 ? 128 : kType == WeightType::kSymInt4 ? 8 : 0;
  const int64_t groups = x.cols / x.group, stride = x.cols;
  const int group_steps = x.group / 4, slice_groups = slice.groups;
  const size_t group_stride = slice.group_stride;
  const int8_t* values = x.values + row * stride + int64_t(group_begin) * x.group;
  const float* x_scales = x.scales + row * groups + group_begin;
  const int32_t* x_sums = x.sums + row * groups + group_begin;
  const float* scales = slice.scales;
  const float* minima = slice.minima;
  const uint8_t* codes0 = slice.codes[0];
  const uint8_t* codes1 = kTiles > 1 ? slice.codes[1] : nullptr;
  const uint8_t* next0 = slice.next[0] + size_t(pass) * kSliceInputs * 16;
  const uint8_t* next1 = kTiles > 1 ? slice.next[1] + size_t(pass) * kSliceInputs * 16 : nullptr;

  for (int j = 0; j < slice_groups; ++j) {
    __asm__ volatile("" ::: "memory");  // the fp32 sums stay in memory: registers are for the int32 sums
    __m512i dot[kRows][kColumns];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512i start = _mm512_set1_epi32(-kZeroPoint * x_sums[r * groups + j]);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) dot[r][c] = start;
      _mm_prefetch(values + (r + kRows) * stride, _MM_HINT_T0);  // the next pass' inputs
    }
    const uint8_t* step0 = codes0 + group_stride * size_t(j);
    const uint8_t* step1 = kTiles > 1 ? codes1 + group_stride * size_t(j) : nullptr;
    for (int kb = 0; kb < group_steps;
         ++kb, values += 4, step0 += 128, step1 += 128, next0 += 64, next1 += 64) {
      __m512i codes[kColumns];
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) codes[c] = load_codes((c < 2 ? step0 : step1) + (c % 2) * 64);
      _mm_prefetch(next0, _MM_HINT_T1);
      if constexpr (kTiles > 1) _mm_prefetch(next1, _MM_HINT_T1);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const __m512i x_step = broadcast_inputs(values + r * stride);
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; ++c) add_dot(dot[r][c], codes[c], x_step);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const float x_scale = x_scales[r * groups + j];
      const __m512 x_scale_f32x16 = _mm512_set1_ps(x_scale);
      const __m512 x_sum_f32x16 = _mm512_set1_ps(float(x_sums[r * groups + j]) * x_scale);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) {
        float* sum = sums + r * kPanelOutputs + c * 16;
        const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(dot[r][c]), x_scale_f32x16);
        __m512 acc = _mm512_fmadd_ps(product, _mm512_load_ps(scales + j * kPanelOutputs + c * 16),
                                     _mm512_load_ps(sum));
        if constexpr (kType == WeightType::kAsymInt4) {
          acc = _mm512_fmadd_ps(x_sum_f32x16, _mm512_load_ps(minima + j * kPanelOutputs + c * 16), acc);
        }
        _mm512_store_ps(sum, acc);
      }
    }
  }
}

using RowsKernel = void (*)(const Slice&, const QuantizedRows&, int row, int group_begin, int pass,
                            float* sums);

template <WeightType kType, int kTiles>
constexpr RowsKernel kRowsKernels[kRegisterRows] = {
    multiply_rows<kType, kTiles, 1>, multiply_rows<kType, kTiles, 2>, multiply_rows<kType, kTiles, 3>,
    multiply_rows<kType, kTiles, 4>, multiply_rows<kType, kTiles, 5>, multiply_rows<kType, kTiles, 6>};

template <int kTiles>
const RowsKernel* rows_kernels(WeightType type) {
  switch (type) {
    case WeightType::kSymInt4:
      return kRowsKernels<WeightType::kSymInt4, kTiles>;
    case WeightType::kAsymInt4:
      return kRowsKernels<WeightType::kAsymInt4, kTiles>;
    default:
      return kRowsKernels<WeightType::kInt8, kTiles>;
  }
}

// Rows [row_begin, row_end) of one panel.
void multiply_panel(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile, int tiles,
                    int row_begin, int row_end, Scratch& scratch) {
  const RowsKernel* kernels = tiles == 2 ? rows_kernels<2>(w.type) : rows_kernels<1>(w.type);
  const int rows = row_end - row_begin, passes = (rows + kRegisterRows - 1) / kRegisterRows;
  const int groups = w.cols / w.group, slice_groups = kSliceInputs / w.group;
  float* sums = scratch.sums();
  std::memset(sums, 0, size_t(rows) * kPanelOutputs * sizeof(float));
  for (int group = 0; group < groups; group += slice_groups) {
    const Slice slice = make_slice(w, tile, tiles, group, std::min(slice_groups, groups - group), scratch);
    for (int pass = 0; pass < passes; ++pass) {
      const int begin = rows * pass / passes, end = rows * (pass + 1) / passes;
      kernels[end - begin - 1](slice, x, row_begin + begin, group, pass, sums + begin * kPanelOutputs);
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < tiles * 2; ++c) {
      write_outputs(w, y, row_begin + r, tile * kTileOutputs + c * 16,
                    _mm512_load_ps(sums + r * kPanelOutputs + c * 16));
    }
  }
}

}  // namespace

size_t linear_int8_panel_scratch_bytes(int rows) {
  return sizeof(Scratch) + size_t(std::min(rows, kChunkRows)) * kPanelOutputs * sizeof(float);
}

void linear_int8_panels(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                        int tile_end, void* scratch) {
  for (int tile = tile_begin; tile < tile_end; tile += kPanelTiles) {
    for (int row = 0; row < x.rows; row += kChunkRows) {
      multiply_panel(w, x, y, tile, std::min(kPanelTiles, tile_end - tile), row,
                     std::min(row + kChunkRows, x.rows), *static_cast<Scratch*>(scratch));
    }
  }
}

}  // namespace redoubt::avx512_vnni

#pragma GCC pop_options
