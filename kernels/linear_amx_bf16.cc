// Weights of 16 codes times bf16 activations in AMX tiles. A tile of outputs' weights are unpacked to bf16,
// scale and minimum included, and multiplied with all rows; sums never leave the tiles between one group and
// the next, as they must where groups are scaled after the product (linear_amx_int8.cc).
#include <immintrin.h>

#include <algorithm>

#include "amx_tiles.h"
#include "linear_avx512_vnni.h"
#include "thread_pool.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,fma,f16c")

namespace redoubt::amx_bf16 {
namespace {

using avx512_vnni::load_codes;
using avx512_vnni::load_halves;
using avx512_vnni::load_table;
using avx512_vnni::real_outputs;

constexpr int kColumns = 2;                         // of 16 outputs in a tile of outputs
constexpr int kStepInputs = Bf16Rows::kStepInputs;  // of one product
// Weights are unpacked so many inputs at a time where rows are many: they leave room in the first-level
// cache.
constexpr int kPanelInputs = 640;
// The same inputs are taken for so many tiles of outputs one after the other: where all rows don't fit the
// second-level cache, those inputs do, with the sums.
constexpr int kPassTiles = 8;
constexpr int kPassBlocks = 32;  // of rows

// The registers: sums of two blocks of rows by two columns of outputs, and what is multiplied.
enum Register { kSums00, kSums01, kSums10, kSums11, kRows0, kRows1, kWeights0, kWeights1 };

TileConfig tile_shapes(int height) {
  TileConfig config;
  for (int tile : {kSums00, kSums01, kSums10, kSums11}) config.shape(tile, height, kTileRowBytes);
  for (int tile : {kRows0, kRows1}) config.shape(tile, height, kTileRowBytes);
  for (int tile : {kWeights0, kWeights1}) config.shape(tile, kTileRows, kTileRowBytes);
  return config;
}

// Weights of 32 inputs as tiles take them, pairs of inputs by outputs.
using WeightTiles = uint16_t[kColumns][kStepInputs / 2][kTileRows][2];

// What the codes stand for before scale and minimum.
template <WeightType kType>
REDOUBT_INLINE __m512 code_values(const PackedMatrix& w) {
  if constexpr (kType == WeightType::kLut4) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_table(w)));
  const __m512i codes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_cvtepi32_ps(kType == WeightType::kSymInt4 ? _mm512_sub_epi32(codes, _mm512_set1_epi32(8))
                                                          : codes);
}

// A group of a tile's weights. values: code_values.
template <WeightType kType, int kGroup, Prefetch kDistance>
REDOUBT_INLINE void unpack(const uint8_t* block, __m512 values, WeightTiles* tiles) {
  const uint8_t* const halves = block + kGroup * 16;
  const __m512 stretch = _mm512_set1_ps(kCutStretch);
  // Of a lane, to its lower half.
  const __m512i upper_halves = _mm512_broadcast_i32x4(_mm_set_epi32(0x0f0e, 0x0b0a, 0x0706, 0x0302));
  const __mmask64 lower_halves = 0x3333333333333333;
#pragma GCC unroll 2
  for (int column = 0; column < kColumns; ++column) {
    const __m512 scales = _mm512_mul_ps(load_halves(halves + 32 * column), stretch);
    const __m512 minima = kType == WeightType::kAsymInt4
                              ? _mm512_mul_ps(load_halves(halves + 64 + 32 * column), stretch)
                              : _mm512_setzero_ps();
    // Of the input whose code is at `bit` of its output's lane. A look-up takes the lowest four bits.
    const auto weights = [&](__m512i codes, int bit) __attribute__((always_inline)) {
      const __m512 value = _mm512_permutexvar_ps(bit == 0 ? codes : _mm512_srli_epi32(codes, bit), values);
      return kType == WeightType::kAsymInt4 ? _mm512_fmadd_ps(scales, value, minima)
                                            : _mm512_mul_ps(scales, value);
    };
#pragma GCC unroll 16
    for (int eighth = 0; eighth < kGroup / 8; ++eighth) {
      const uint8_t* const at = block + eighth * 128 + column * 64;
      prefetch_weights<kDistance>(at);
      const __m512i codes = load_codes(at);
      auto* const pairs = &tiles[eighth / 4][column][eighth % 4 * 4];
#pragma GCC unroll 4
      for (int pair = 0; pair < 4; ++pair) {
        // Inputs 2 * pair and 2 * pair + 1: four inputs' low nibbles, then four inputs' high ones.
        const int bit = pair % 2 * 16 + pair / 2 * 4;
        const __m512i even = _mm512_castps_si512(weights(codes, bit));
        const __m512i odd = _mm512_castps_si512(weights(codes, bit + 8));
        _mm512_store_si512(pairs[pair], _mm512_mask_shuffle_epi8(odd, lower_halves, even, upper_halves));
      }
    }
  }
  for (int i = 0; i < (kType == WeightType::kAsymInt4 ? 2 : 1); ++i) {
    prefetch_weights<kDistance>(halves + 64 * i);
  }
}

alignas(64) constexpr float kZeros[kTileRows] = {};

// Where the sums of a block of rows and a tile of outputs begin or end: rows `stride` floats apart.
struct Place {
  float* values;
  int64_t stride;
};

// Some tiles of outputs times some blocks of rows. Sums begin and end in y; in edges_ where y has fewer
// outputs or rows than tiles, or begins with two addends.
template <WeightType kType, int kGroup, typename Tiles>
class Pass {
 public:
  Pass(Tiles& tiles, const PackedMatrix& w, const Bf16Rows& x, const LinearOutput& y)
      : tiles_(tiles),
        w_(w),
        x_(x),
        y_(y),
        height_(x.height()),
        groups_(w.cols / kGroup),
        values_(code_values<kType>(w)) {}

  void multiply_tiles(Range tiles, Range blocks) {
    const int count = blocks.end - blocks.begin;
    if (count > 2) return multiply_panels(tiles, blocks);
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
      if (count == 1) {
        multiply_as_unpacked<1>(tile, blocks.begin);
      } else {
        multiply_as_unpacked<2>(tile, blocks.begin);
      }
    }
  }

 private:
  static constexpr int kGroupSteps = kGroup / kStepInputs;
  static constexpr int kPanelGroups = kPanelInputs / kGroup;
  using Edge = float[kTileRows][kTileOutputs];

  // For few rows, whose sums stay in the tiles: a group is multiplied when the next has been unpacked, and so
  // its stores are not waited for.
  template <int kBlocks>
  void multiply_as_unpacked(int tile, int block) {
    Place places[2];
    begin_sums<kBlocks>(tile, block, true, places);
    for (int group = 0; group < groups_; ++group) {
      unpack_group<Prefetch::kNear>(tile, group, group % 2);
      if (group > 0) multiply<kBlocks>((group - 1) % 2, group - 1, 1, block);
    }
    multiply<kBlocks>((groups_ - 1) % 2, groups_ - 1, 1, block);
    end_sums<kBlocks>(tile, block, places);
  }

  // For many.
  void multiply_panels(Range tiles, Range blocks) {
    const int panels = (groups_ + kPanelGroups - 1) / kPanelGroups;
    for (int panel = 0; panel < panels; ++panel) {
      const Range groups = share(groups_, panel, panels);
      for (int tile = tiles.begin; tile < tiles.end; ++tile) {
        for (int i = groups.begin; i < groups.end; ++i) {
          unpack_group<Prefetch::kFar>(tile, i, i - groups.begin);
        }
        int block = blocks.begin;
        for (; block + 1 < blocks.end; block += 2) multiply_panel<2>(tile, groups, block);
        if (block < blocks.end) multiply_panel<1>(tile, groups, block);
      }
    }
  }

  template <int kBlocks>
  REDOUBT_INLINE void multiply_panel(int tile, Range groups, int block) {
    Place places[2];
    begin_sums<kBlocks>(tile, block, groups.begin == 0, places);
    multiply<kBlocks>(0, groups.begin, groups.end - groups.begin, block);
    end_sums<kBlocks>(tile, block, places);
  }

  template <Prefetch kDistance>
  REDOUBT_INLINE void unpack_group(int tile, int group, int place) {
    unpack<kType, kGroup, kDistance>(w_.tile(tile) + size_t(group) * w_.block_bytes(), values_,
                                     weights_ + place * kGroupSteps);
  }

  // Adds the products of groups that are unpacked from `place` on. Weights stay in the first-level cache,
  // rows pass it by.
  template <int kBlocks>
  REDOUBT_INLINE void multiply(int place, int group, int groups, int block) {
    const WeightTiles* const weights = weights_ + place * kGroupSteps;
    const int64_t step_values = int64_t(height_) * kStepInputs;
    const uint16_t* const rows0 = x_.step(block, group * kGroupSteps);
    const uint16_t* const rows1 = kBlocks == 2 ? x_.step(block + 1, group * kGroupSteps) : nullptr;
    for (int step = 0; step < groups * kGroupSteps; ++step) {
      tiles_.template load<kWeights0>(weights[step][0], kTileRowBytes);
      tiles_.template load_streamed<kRows0>(rows0 + step * step_values, kTileRowBytes);
      tiles_.template dot_product_bf16<kSums00, kRows0, kWeights0>();
      tiles_.template load<kWeights1>(weights[step][1], kTileRowBytes);
      tiles_.template dot_product_bf16<kSums01, kRows0, kWeights1>();
      if constexpr (kBlocks == 2) {
        tiles_.template load_streamed<kRows1>(rows1 + step * step_values, kTileRowBytes);
        tiles_.template dot_product_bf16<kSums10, kRows1, kWeights0>();
        tiles_.template dot_product_bf16<kSums11, kRows1, kWeights1>();
      }
    }
  }

  // Loads the sums of a tile and one block or two, and says where they go afterwards. is_first: nothing was
  // added yet.
  template <int kBlocks>
  REDOUBT_INLINE void begin_sums(int tile, int block, bool is_first, Place (&places)[2]) {
#pragma GCC unroll 2
    for (int i = 0; i < kBlocks; ++i) {
      places[i] = place_of(tile, block + i, is_first, edges_[i]);
      const Place& from = places[i];
      const bool is_edge = from.values == &edges_[i][0][0];
      if (!is_first || is_edge || y_.accumulate) {
        load_sums(i, from.values, from.stride);
      } else if (y_.bias != nullptr) {
        load_sums(i, y_.bias + tile * kTileOutputs, 0);
      } else {
        load_sums(i, kZeros, 0, 0);
      }
    }
  }
  REDOUBT_INLINE void load_sums(int index, const float* values, int64_t stride, int column = kTileRows) {
    if (index == 0) {
      tiles_.template load<kSums00>(values, stride * 4);
      tiles_.template load<kSums01>(values + column, stride * 4);
    } else {
      tiles_.template load<kSums10>(values, stride * 4);
      tiles_.template load<kSums11>(values + column, stride * 4);
    }
  }

  template <int kBlocks>
  REDOUBT_INLINE void end_sums(int tile, int block, const Place (&places)[2]) {
    tiles_.template store<kSums00>(places[0].values, places[0].stride * 4);
    tiles_.template store<kSums01>(places[0].values + kTileRows, places[0].stride * 4);
    if constexpr (kBlocks == 2) {
      tiles_.template store<kSums10>(places[1].values, places[1].stride * 4);
      tiles_.template store<kSums11>(places[1].values + kTileRows, places[1].stride * 4);
    }
    for (int i = 0; i < kBlocks; ++i) {
      if (places[i].values == &edges_[i][0][0]) write_edge(tile, block + i, edges_[i]);
    }
  }

  REDOUBT_INLINE Place place_of(int tile, int block, bool is_first, Edge& edge) const {
    const bool is_whole = (tile + 1) * kTileOutputs <= w_.rows && (block + 1) * height_ <= x_.rows &&
                          !(is_first && y_.accumulate && y_.bias != nullptr);
    if (is_whole) return {y_.values + int64_t(block) * height_ * y_.stride + tile * kTileOutputs, y_.stride};
    read_edge(tile, block, is_first, edge);
    return {&edge[0][0], kTileOutputs};
  }

  void read_edge(int tile, int block, bool is_first, Edge& edge) const {
    const int rows = std::min(height_, x_.rows - block * height_);
    for (int r = 0; r < rows; ++r) {
      for (int column = 0; column < kTileOutputs; column += kTileRows) {
        const int output = tile * kTileOutputs + column;
        const __mmask16 real = real_outputs(w_, output);
        __m512 sum = _mm512_setzero_ps();
        if (!is_first || y_.accumulate) sum = _mm512_maskz_loadu_ps(real, out_of(block, r, output));
        if (is_first && y_.bias != nullptr) {
          sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(real, y_.bias + output));
        }
        _mm512_store_ps(&edge[r][column], sum);
      }
    }
  }
  void write_edge(int tile, int block, const Edge& edge) const {
    const int rows = std::min(height_, x_.rows - block * height_);
    for (int r = 0; r < rows; ++r) {
      for (int column = 0; column < kTileOutputs; column += kTileRows) {
        const int output = tile * kTileOutputs + column;
        _mm512_mask_storeu_ps(out_of(block, r, output), real_outputs(w_, output),
                              _mm512_load_ps(&edge[r][column]));
      }
    }
  }
  float* out_of(int block, int r, int output) const {
    return y_.values + (int64_t(block) * height_ + r) * y_.stride + output;
  }

  Tiles& tiles_;
  const PackedMatrix& w_;
  const Bf16Rows& x_;
  const LinearOutput& y_;
  const int height_, groups_;
  const __m512 values_;
  alignas(64) Edge edges_[2];
  alignas(64) WeightTiles weights_[kPanelInputs / kStepInputs];
};

template <WeightType kType, int kGroup, typename Tiles>
void multiply(const PackedMatrix& w, const Bf16Rows& x, const LinearOutput& y, int tile_begin, int tile_end) {
  Tiles tiles(tile_shapes(x.height()));
  Pass<kType, kGroup, Tiles> pass(tiles, w, x, y);
  for (int tile = tile_begin; tile < tile_end; tile += kPassTiles) {
    for (int block = 0; block < x.blocks(); block += kPassBlocks) {
      pass.multiply_tiles({tile, std::min(tile + kPassTiles, tile_end)},
                          {block, std::min(block + kPassBlocks, x.blocks())});
    }
  }
}

template <WeightType kType, typename Tiles>
void multiply_groups(const PackedMatrix& w, const Bf16Rows& x, const LinearOutput& y, int tile_begin,
                     int tile_end) {
  if (w.group == 32) return multiply<kType, 32, Tiles>(w, x, y, tile_begin, tile_end);
  if (w.group == 64) return multiply<kType, 64, Tiles>(w, x, y, tile_begin, tile_end);
  multiply<kType, 128, Tiles>(w, x, y, tile_begin, tile_end);
}

template <typename Tiles>
void linear_bf16(const PackedMatrix& w, const Bf16Rows& x, const LinearOutput& y, int tile_begin,
                 int tile_end) {
  switch (w.type) {
    case WeightType::kSymInt4:
      return multiply_groups<WeightType::kSymInt4, Tiles>(w, x, y, tile_begin, tile_end);
    case WeightType::kAsymInt4:
      return multiply_groups<WeightType::kAsymInt4, Tiles>(w, x, y, tile_begin, tile_end);
    default:
      return multiply_groups<WeightType::kLut4, Tiles>(w, x, y, tile_begin, tile_end);
  }
}

void round_rows(const FloatRows& x, const Bf16Rows& out, int row, int col) {
  const int64_t step_values = int64_t(out.height()) * kStepInputs;
  for (int r = 0; r < x.rows; ++r) {
    const float* from = x.values + r * x.stride;
    uint16_t* to = out.row(row + r, col / kStepInputs);
    for (int k = 0; k < x.cols; k += kStepInputs, from += kStepInputs, to += step_values) {
      const __m512bh rounded = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + 16), _mm512_loadu_ps(from));
      _mm512_storeu_si512(to, __m512i(rounded));
    }
  }
}

}  // namespace
}  // namespace redoubt::amx_bf16

#pragma GCC pop_options

namespace redoubt {

void fill_linear_amx_bf16(KernelTable& table) {
  table.round_rows = amx_bf16::round_rows;
  table.linear_bf16 = amx_bf16::linear_bf16<AmxTiles>;
}

void fill_linear_amx_bf16_emulated(KernelTable& table) {
  table.round_rows = amx_bf16::round_rows;
  table.linear_bf16 = amx_bf16::linear_bf16<EmulatedTiles>;
}

}  // namespace redoubt
