// Integer weights times bf16 activations in AMX tiles. The weights of a tile of outputs are unpacked to bf16,
// including scale and minimum, and multiplied with all rows. Sums stay in the tile registers from group to
// group; with int8 they cannot, because groups are scaled after the product (linear/int8_amx-inl.h).
// gate_up_bf16 computes SiLU while the tiles multiply the next rows.
//
// Included inside the namespace and target region of linear/bf16_amx.cc, which has the processor's tiles and
// fp16 arithmetic, and of testing/linear_bf16_amx_emulated.cc, which emulates both. Machine, below, is one of
// the two. The constants were measured: docs/tuning.md.

using avx512::load_codes;  // for linear/bf16_weights-inl.h
using avx512::load_table;
using avx512::real_outputs;

#include "linear/bf16_weights-inl.h"

#include "simd/vector_avx512-inl.h"

#include "simd/exp2-inl.h"

#include "ops/silu-inl.h"

// Inputs whose weights are unpacked together when there are many rows. They fit the first-level cache.
constexpr int kPanelInputs = 640;
constexpr int kBlocksTogether = 2;  // of rows
// A pass multiplies some blocks of rows with several tiles of outputs, one after the other, so that its
// inputs and sums stay in the second-level cache even when all rows do not fit.
constexpr int kPassBlocks = 32;  // of rows
constexpr int kPassSums = 256;   // tiles of outputs times blocks of rows: 512 KiB

// The tile registers: sums of two blocks of rows by two columns of outputs, then the two factors.
enum Register { kSums00, kSums01, kSums10, kSums11, kRows0, kRows1, kWeights0, kWeights1 };

TileConfig tile_shapes(int height) {
  TileConfig config;
  for (int tile : {kSums00, kSums01, kSums10, kSums11}) config.shape(tile, height, kTileRowBytes);
  for (int tile : {kRows0, kRows1}) config.shape(tile, height, kTileRowBytes);
  for (int tile : {kWeights0, kWeights1}) config.shape(tile, kTileRows, kTileRowBytes);
  return config;
}

alignas(64) constexpr float kZeros[kTileRows] = {};

// Where the sums of a block of rows and a tile of outputs are loaded from or stored to: rows `stride` floats
// apart.
struct Place {
  float* values;
  int64_t stride;
};

// Some tiles of outputs times some blocks of rows. Sums are loaded from y and stored there. They go through
// edges_ where y has fewer outputs or rows than the tiles, or where two addends come first (bias and old
// value). finish_tile stores them in sums_.
template <WeightType kType, int kGroup, typename Machine>
class Pass {
 public:
  using Tiles = typename Machine::Tiles;

  Pass(Tiles& tiles, const PackedMatrix& w, const Bf16Rows& x, const LinearOutput& y)
      : tiles_(tiles),
        w_(w),
        x_(x),
        y_(y),
        height_(x.height),
        groups_(w.cols / kGroup),
        values_(code_values<kType>(w)) {}

  void multiply_tiles(Range tiles, Range blocks) {
    const int count = blocks.end - blocks.begin;
    if (count > kBlocksTogether) {
      multiply_panels(tiles, blocks, panels());
    } else if (count == 2) {
      multiply_as_unpacked<2>(tiles, blocks.begin);
    } else {
      multiply_as_unpacked<1>(tiles, blocks.begin);
    }
  }

  // Number of parts of the inputs that are unpacked one after the other if there are more than
  // kBlocksTogether blocks. Each part adds to y.
  int panels() const { return (groups_ + kPanelGroups - 1) / kPanelGroups; }

  // The first `count` panels, for many rows. Weights are unpacked while the first blocks are multiplied, and
  // are used again for the other blocks.
  void multiply_panels(Range tiles, Range blocks, int count) {
    for (int panel = 0; panel < count; ++panel) {
      const Range groups = share(groups_, panel, panels());
      for (int tile = tiles.begin; tile < tiles.end; ++tile) {
        Place places[2];
        multiply_and_unpack_panel(tile, groups, blocks.begin, places);
        end_sums<2>(tile, blocks.begin, places);
        int block = blocks.begin + 2;
        for (; block + 1 < blocks.end; block += 2) multiply_panel<2>(tile, groups, block);
        if (block < blocks.end) multiply_panel<1>(tile, groups, block);
      }
    }
  }

  // The last panel of one tile. Its sums are not stored in y: finish(block, row of the block, kTileOutputs
  // sums) is called for each row while the next rows are multiplied.
  template <typename Finish>
  REDOUBT_INLINE void finish_tile(int tile, Range blocks, const Finish& finish) {
    const Range groups = share(groups_, panels() - 1, panels());
    Place places[2];
    multiply_and_unpack_panel(tile, groups, blocks.begin, places);
    keep_sums<2>();
    int unfinished = blocks.begin, block = unfinished + 2;
    for (; block + 1 < blocks.end; block += 2) {
      multiply_and_finish<2>(tile, groups, block, unfinished, finish);
      unfinished = block;
    }
    if (block < blocks.end) {
      multiply_and_finish<1>(tile, groups, block, unfinished, finish);
      unfinished = block;
    }
    finish_rows(unfinished, 0, std::min(2 * height_, x_.rows - unfinished * height_), finish);
  }

 private:
  static constexpr int kGroupSteps = kGroup / kStepInputs;
  static constexpr int kLead = kGroup == 32 ? 2 : 1;  // of groups, with few rows
  static constexpr int kPlaces = 2 * kLead;
  static constexpr int kPanelGroups = kPanelInputs / kGroup;
  static constexpr size_t kBlockBytes = packed_block_bytes(kType, kGroup);
  using Edge = float[kTileRows][kTileOutputs];
  // The factors: unpacked weights, and the same inputs of one block of rows or two.
  struct Products {
    const WeightTiles* weights;
    const uint16_t* rows0;
    const uint16_t* rows1;
    int64_t step_values;
  };

  // For few rows. Their sums stay in the tile registers from the first group to the last. A group is unpacked
  // kLead groups before it is multiplied, because a tile load has to wait until the stored weights have
  // reached the cache.
  template <int kBlocks>
  void multiply_as_unpacked(Range tiles, int block) {
    Place places[2];
    const int count = (tiles.end - tiles.begin) * groups_;
    int tile = tiles.begin, group = 0;            // of what is multiplied next
    int next_tile = tiles.begin, next_group = 0;  // and unpacked
    const auto unpacked = [&]() __attribute__((always_inline)) {
      if (++next_group == groups_) next_group = 0, ++next_tile;
    };
    const auto multiplied = [&]() __attribute__((always_inline)) {
      if (++group < groups_) return;
      end_sums<kBlocks>(tile, block, places);
      group = 0;
      if (++tile < tiles.end) begin_sums<kBlocks>(tile, block, true, places);
    };
    for (int i = 0; i < std::min(kLead, count); ++i, unpacked()) {
      unpack_group<Prefetch::kNear>(next_tile, next_group, i);
    }
    begin_sums<kBlocks>(tile, block, true, places);
    for (int i = kLead; i < count; ++i, unpacked(), multiplied()) {
      const Products products = products_of((i - kLead) % kPlaces, group, block);
      multiply_and_unpack<kBlocks, Prefetch::kNear>(products, next_tile, next_group, i % kPlaces);
    }
    for (int i = std::max(0, count - kLead); i < count; ++i, multiplied()) {
      multiply<kBlocks>(i % kPlaces, group, 1, block);
    }
  }

  // Unpacks a tile's weights of a panel and multiplies two blocks with them.
  REDOUBT_INLINE void multiply_and_unpack_panel(int tile, Range groups, int block, Place (&places)[2]) {
    unpack_group<Prefetch::kFar>(tile, groups.begin, 0);
    begin_sums<2>(tile, block, groups.begin == 0, places);
    for (int group = groups.begin + 1; group < groups.end; ++group) {
      const int place = group - groups.begin;
      multiply_and_unpack<2, Prefetch::kFar>(products_of(place - 1, group - 1, block), tile, group, place);
    }
    multiply<2>(groups.end - 1 - groups.begin, groups.end - 1, 1, block);
  }

  template <int kBlocks>
  REDOUBT_INLINE void multiply_panel(int tile, Range groups, int block) {
    Place places[2];
    begin_sums<kBlocks>(tile, block, groups.begin == 0, places);
    multiply<kBlocks>(0, groups.begin, groups.end - groups.begin, block);
    end_sums<kBlocks>(tile, block, places);
  }

  // Multiplies one block or two while it finishes the two blocks whose sums were kept.
  template <int kBlocks, typename Finish>
  REDOUBT_INLINE void multiply_and_finish(int tile, Range groups, int block, int unfinished,
                                          const Finish& finish) {
    Place places[2];
    begin_sums<kBlocks>(tile, block, groups.begin == 0, places);
    const int rows = 2 * height_;
    int done = 0;
    multiply<kBlocks>(0, groups.begin, groups.end - groups.begin, block,
                      [&](int part) __attribute__((always_inline)) {
                        if (part % 4 == 1 && done < rows) {
                          finish_rows(unfinished, done, done + 1, finish);
                          ++done;
                        }
                      });
    finish_rows(unfinished, done, rows, finish);
    keep_sums<kBlocks>();
  }

  // For the two blocks whose sums are kept; `block` is the first of them.
  template <typename Finish>
  REDOUBT_INLINE void finish_rows(int block, int begin, int end, const Finish& finish) const {
    for (int r = begin; r < end; ++r) {
      const int second = r >= height_, row = r - second * height_;
      finish(block + second, row, sums_[second][row]);
    }
  }

  REDOUBT_INLINE const uint8_t* block_of(int tile, int group) const {
    return w_.data + (size_t(tile) * size_t(groups_) + size_t(group)) * kBlockBytes;
  }

  template <Prefetch kDistance>
  void unpack_group(int tile, int group, int place) {
    unpack<kType, kGroup, kDistance, typename Machine::Lanes>(
        block_of(tile, group), values_, weights_ + place * kGroupSteps, [](int, int) {});
  }

  // Issues one tile instruction after each line or two of codes, so that tiles and vector units work at the
  // same time.
  template <int kBlocks, Prefetch kDistance>
  REDOUBT_INLINE void multiply_and_unpack(const Products& products, int tile, int group, int place) {
    unpack<kType, kGroup, kDistance, typename Machine::Lanes>(
        block_of(tile, group), values_, weights_ + place * kGroupSteps,
        [&](int step, int part)
            __attribute__((always_inline)) { multiply_part<kBlocks>(products, step, part); });
  }

  Products products_of(int place, int group, int block) const {
    const int64_t step_values = int64_t(height_) * kStepInputs, block_values = int64_t(height_) * x_.cols;
    const uint16_t* const rows = x_.values + block * block_values + group * kGroupSteps * step_values;
    return {weights_ + place * kGroupSteps, rows, rows + block_values, step_values};
  }

  // Adds the products of groups whose unpacked weights begin at `place`.
  template <int kBlocks>
  REDOUBT_INLINE void multiply(int place, int group, int groups, int block) {
    multiply<kBlocks>(place, group, groups, block, [&](int) {});
  }
  // The same, and calls between(part) after each part of a step.
  template <int kBlocks, typename Between>
  REDOUBT_INLINE void multiply(int place, int group, int groups, int block, const Between& between) {
    const Products products = products_of(place, group, block);
    for (int step = 0; step < groups * kGroupSteps; ++step) {
#pragma GCC unroll 8
      for (int part = 0; part < kStepParts; ++part) {
        multiply_part<kBlocks>(products, step, part);
        between(part);
      }
    }
  }

  // The products of a step, in kStepParts parts. Weights stay in the first-level cache; rows are loaded
  // without displacing them.
  template <int kBlocks>
  REDOUBT_INLINE void multiply_part(const Products& of, int step, int part) {
    switch (part) {
      case 0:
        tiles_.template load<kWeights0>(of.weights[step][0], kTileRowBytes);
        tiles_.template load_streamed<kRows0>(of.rows0 + step * of.step_values, kTileRowBytes);
        break;
      case 1:
        tiles_.template dot_product_bf16<kSums00, kRows0, kWeights0>();
        break;
      case 2:
        tiles_.template load<kWeights1>(of.weights[step][1], kTileRowBytes);
        break;
      case 3:
        tiles_.template dot_product_bf16<kSums01, kRows0, kWeights1>();
        break;
      case 4:
        if constexpr (kBlocks == 2) {
          tiles_.template load_streamed<kRows1>(of.rows1 + step * of.step_values, kTileRowBytes);
        }
        break;
      case 5:
        if constexpr (kBlocks == 2) tiles_.template dot_product_bf16<kSums10, kRows1, kWeights0>();
        break;
      case 7:
        if constexpr (kBlocks == 2) tiles_.template dot_product_bf16<kSums11, kRows1, kWeights1>();
        break;
    }
  }

  // Loads the sums of a tile and one block or two, and sets where they are stored afterwards. is_first: no
  // products have been added yet.
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

  template <int kBlocks>
  REDOUBT_INLINE void keep_sums() {
    constexpr int64_t kStride = kTileOutputs * sizeof(float);
    tiles_.template store<kSums00>(sums_[0][0], kStride);
    tiles_.template store<kSums01>(sums_[0][0] + kTileRows, kStride);
    if constexpr (kBlocks == 2) {
      tiles_.template store<kSums10>(sums_[1][0], kStride);
      tiles_.template store<kSums11>(sums_[1][0] + kTileRows, kStride);
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
  const __m512i values_;
  alignas(64) Edge edges_[2];
  alignas(64) Edge sums_[2];
  alignas(64) WeightTiles weights_[kPanelInputs / kStepInputs];
};

template <WeightType kType, int kGroup, typename Machine>
void multiply(const PackedMatrix& w, const Bf16Rows& x, const LinearOutput& y, int tile_begin, int tile_end) {
  typename Machine::Tiles tiles(tile_shapes(x.height));
  Pass<kType, kGroup, Machine> pass(tiles, w, x, y);
  const int blocks = std::min(x.blocks(), kPassBlocks), pass_tiles = kPassSums / std::max(1, blocks);
  for (int tile = tile_begin; tile < tile_end; tile += pass_tiles) {
    for (int block = 0; block < x.blocks(); block += blocks) {
      pass.multiply_tiles({tile, std::min(tile + pass_tiles, tile_end)},
                          {block, std::min(block + blocks, x.blocks())});
    }
  }
}

// Stores 32 values of a row as round_rows does: `low` the first 16, `high` the others.
REDOUBT_INLINE void store_rounded(uint16_t* to, F32s low, F32s high) {
  // Of each eight inputs, the even ones first.
  const __m512i evens_first = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0f0e0b0a07060302, 0x0d0c090805040100));
  const auto scaled = [&](F32s x) __attribute__((always_inline)) {
    // NaN stays NaN: min and max return their second operand when one of the two is NaN.
    const F32s limit = set(kLargestBf16), product = mul(x, set(kBf16InputFactor));
    return max_of(sub(set(0.0f), limit), min_of(limit, product));
  };
  const __m512bh rounded = _mm512_cvtne2ps_pbh(scaled(high), scaled(low));
  _mm512_storeu_si512(to, _mm512_shuffle_epi8(__m512i(rounded), evens_first));
}

// For some blocks of x, at least kBlocksTogether.
template <typename Pass>
void gate_up(Pass& gate, Pass& up, const GateUp& layer, const Bf16Rows& x, const Bf16Rows& out, int col,
             Range blocks) {
  const Range all_tiles{0, layer.gate.tiles()};
  gate.multiply_panels(all_tiles, blocks, gate.panels() - 1);
  up.multiply_panels(all_tiles, blocks, up.panels() - 1);
  // SiLU of the gate overwrites the gate's stored sums. With one panel no sums are stored, and only one
  // tile's SiLU is kept, in rows next to each other.
  const bool has_sums = gate.panels() > 1;
  const int64_t stride = has_sums ? layer.gates.stride : kTileOutputs;
  for (int tile = 0; tile < all_tiles.end; ++tile) {
    float* const silus = layer.gates.values + (has_sums ? tile * kTileOutputs : 0);
    const auto silu_of = [&](int block, int r) __attribute__((always_inline)) {
      return silus + (block * x.height + r) * stride;
    };
    gate.finish_tile(tile, blocks, [&](int block, int r, const float* sums) __attribute__((always_inline)) {
      float* const to = silu_of(block, r);
      store(to, silu(load(sums)));
      store(to + kLanes, silu(load(sums + kLanes)));
    });
    const int step = col / kStepInputs + tile;
    up.finish_tile(tile, blocks, [&](int block, int r, const float* sums) __attribute__((always_inline)) {
      const float* const silu = silu_of(block, r);
      store_rounded(out.step(block, step) + r * kStepInputs, mul(load(silu), load(sums)),
                    mul(load(silu + kLanes), load(sums + kLanes)));
    });
  }
}

template <WeightType kType, int kGroup, typename Machine>
void gate_up(const GateUp& layer, const Bf16Rows& x, const Bf16Rows& out, int col) {
  typename Machine::Tiles tiles(tile_shapes(x.height));
  Pass<kType, kGroup, Machine> gate(tiles, layer.gate, x, layer.gates), up(tiles, layer.up, x, layer.ups);
  const int passes = (x.blocks() + kPassBlocks - 1) / kPassBlocks;
  for (int pass = 0; pass < passes; ++pass) {
    gate_up(gate, up, layer, x, out, col, share(x.blocks(), pass, passes));
  }
}

template <WeightType kType, typename Machine>
void multiply_groups(const PackedMatrix& w, const Bf16Rows& x, const LinearOutput& y, int tile_begin,
                     int tile_end) {
  if (w.group == 32) return multiply<kType, 32, Machine>(w, x, y, tile_begin, tile_end);
  if (w.group == 64) return multiply<kType, 64, Machine>(w, x, y, tile_begin, tile_end);
  multiply<kType, 128, Machine>(w, x, y, tile_begin, tile_end);
}

template <typename Machine>
void linear_bf16(const PackedMatrix& w, const Bf16Rows& x, const LinearOutput& y, int tile_begin,
                 int tile_end) {
  with_integer_type(w.type,
                    [&](auto type) { multiply_groups<type(), Machine>(w, x, y, tile_begin, tile_end); });
}

template <WeightType kType, typename Machine>
void gate_up_groups(const GateUp& layer, const Bf16Rows& x, const Bf16Rows& out, int col) {
  if (layer.gate.group == 32) return gate_up<kType, 32, Machine>(layer, x, out, col);
  if (layer.gate.group == 64) return gate_up<kType, 64, Machine>(layer, x, out, col);
  gate_up<kType, 128, Machine>(layer, x, out, col);
}

// For so few rows that no other rows could be multiplied while SiLU is computed.
template <typename Machine>
void gate_up_few(const GateUp& layer, const Bf16Rows& x, const Bf16Rows& out, int col) {
  const auto &gates = layer.gates, &ups = layer.ups;
  linear_bf16<Machine>(layer.gate, x, gates, 0, layer.gate.tiles());
  linear_bf16<Machine>(layer.up, x, ups, 0, layer.up.tiles());
  for (int r = 0; r < x.rows; ++r) {
    for (int n = 0; n < layer.gate.rows; n += kTileOutputs) {
      const float *gate = gates.values + r * gates.stride + n, *up = ups.values + r * ups.stride + n;
      store_rounded(out.row(r, (col + n) / kStepInputs), mul(silu(load(gate)), load(up)),
                    mul(silu(load(gate + kLanes)), load(up + kLanes)));
    }
  }
}

template <typename Machine>
void gate_up_bf16(const GateUp& layer, const Bf16Rows& x, const Bf16Rows& out, int col) {
  if (x.blocks() <= kBlocksTogether) return gate_up_few<Machine>(layer, x, out, col);
  with_integer_type(layer.gate.type, [&](auto type) { gate_up_groups<type(), Machine>(layer, x, out, col); });
}

void round_rows(const FloatRows& x, const Bf16Rows& out, int row, int col) {
  const int64_t step_values = int64_t(out.height) * kStepInputs;
  for (int r = 0; r < x.rows; ++r) {
    const float* from = x.values + r * x.stride;
    uint16_t* to = out.row(row + r, col / kStepInputs);
    for (int k = 0; k < x.cols; k += kStepInputs, from += kStepInputs, to += step_values) {
      store_rounded(to, load(from), load(from + kLanes));
    }
  }
}
