// Integer weights times int8 activations in AMX tiles: the codes of one group are unpacked into the layout
// that tdpbsud takes and multiplied with up to 64 rows; then each group's float step is done on the sums, in
// the order that the contract demands. Few rows go to the AVX-512 VNNI kernel, whose results are the same.
//
// Never run on a processor with AMX yet, so nothing here is measured: block sizes follow from instruction
// counts. One tdpbsud does the work of 256 vpdpbusd, so the float step should take most of the time.
#include <immintrin.h>

#include <algorithm>

#include "amx_tiles.h"
#include "linear_avx512_vnni.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c")

namespace redoubt::amx_int8 {
namespace {

using avx512_vnni::load_codes;
using avx512_vnni::load_halves;
using avx512_vnni::load_table;
using avx512_vnni::write_outputs;

// Fewer rows leave most of a tile empty while the codes must be unpacked all the same. An estimate.
constexpr int kFewestRows = 16;
// Rows go through a tile's groups in passes of this many blocks, so that unpacking a group is shared and
// what a pass touches again and again, 20 KiB, stays in the first-level cache.
constexpr int kPassBlocks = 4;
constexpr int kMostGroup = 128;

// Rows [0, rows) in `count` blocks of `height`, which fits the tiles. Blocks are of one height, because the
// shape of tiles is set once a call: the last one begins early enough to end at the last row, so some rows
// may be computed twice. A block's own rows are those before the next block's.
struct Blocks {
  int rows, count, height;

  explicit Blocks(int total)
      : rows(total), count((total + kTileRows - 1) / kTileRows), height((total + count - 1) / count) {}
  int begin(int block) const { return std::min(block * height, rows - height); }
  // The first row of a block that no earlier block has, from its begin.
  int first_own(int block) const { return block * height - begin(block); }
};

// The registers: sums of two blocks of inputs (of two terms: of both terms of one block) by two columns of 16
// outputs, and what is multiplied.
enum Register { kSums00, kSums01, kSums10, kSums11, kInputs0, kInputs1, kCodes0, kCodes1 };

TileConfig tile_shapes(int height, int group) {
  const int depth = std::min(group, kTileRowBytes);  // inputs of one tdpbsud
  TileConfig config;
  for (int tile : {kSums00, kSums01, kSums10, kSums11}) config.shape(tile, height, kTileRowBytes);
  for (int tile : {kInputs0, kInputs1}) config.shape(tile, height, depth);
  for (int tile : {kCodes0, kCodes1}) config.shape(tile, depth / 4, kTileRowBytes);
  return config;
}

using Sums = int32_t[2][kTileRows][kTileOutputs];

// One group of one or two blocks of inputs, whose rows are `stride` bytes apart. codes: [group / 4][32][4].
template <int kCount, typename Tiles>
REDOUBT_INLINE void multiply_group(Tiles& tiles, const int8_t* const (&inputs)[2], int64_t stride,
                                   const uint8_t* codes, int group, Sums& sums) {
  constexpr int kRowBytes = kTileOutputs * 4;
  tiles.template zero<kSums00>();
  tiles.template zero<kSums01>();
  if constexpr (kCount == 2) {
    tiles.template zero<kSums10>();
    tiles.template zero<kSums11>();
  }
  for (int k = 0; k < group; k += kTileRowBytes) {
    tiles.template load<kCodes0>(codes + k * kTileOutputs, kRowBytes);
    tiles.template load<kCodes1>(codes + k * kTileOutputs + kTileRowBytes, kRowBytes);
    tiles.template load<kInputs0>(inputs[0] + k, stride);
    tiles.template dot_product<kSums00, kInputs0, kCodes0>();
    tiles.template dot_product<kSums01, kInputs0, kCodes1>();
    if constexpr (kCount == 2) {
      tiles.template load<kInputs1>(inputs[1] + k, stride);
      tiles.template dot_product<kSums10, kInputs1, kCodes0>();
      tiles.template dot_product<kSums11, kInputs1, kCodes1>();
    }
  }
  tiles.template store<kSums00>(&sums[0][0][0], kRowBytes);
  tiles.template store<kSums01>(&sums[0][0][16], kRowBytes);
  if constexpr (kCount == 2) {
    tiles.template store<kSums10>(&sums[1][0][0], kRowBytes);
    tiles.template store<kSums11>(&sums[1][0][16], kRowBytes);
  }
}

// A group's codes in the order of their inputs: a packed 64 bytes give those of inputs 8 kb .. 8 kb + 4 by
// their low nibbles, and of the four after by their high ones. lut4's stand for entries plus 128.
template <WeightType kType>
REDOUBT_INLINE void unpack(const uint8_t* codes, __m512i table, int group, uint8_t* panel) {
  const __m512i low_nibble = _mm512_set1_epi8(15);
  for (int at = 0; at < group * 16; at += 64) {
    prefetch_weights<Prefetch::kFar>(codes + at);
    const __m512i pair = load_codes(codes + at);
    __m512i low = _mm512_and_si512(pair, low_nibble);
    __m512i high = _mm512_and_si512(_mm512_srli_epi16(pair, 4), low_nibble);
    if constexpr (kType == WeightType::kLut4) {
      low = _mm512_shuffle_epi8(table, low);
      high = _mm512_shuffle_epi8(table, high);
    }
    uint8_t* out = panel + at / 128 * 256 + at % 128;
    _mm512_store_si512(out, low);
    _mm512_store_si512(out + 128, high);
  }
}

// What a group's float step needs besides its sums.
struct FloatStep {
  const uint8_t* halves;  // the group's scales, and minima
  int group;              // its number
  int block;              // the first of its blocks, counted from the pass's first
};

template <WeightType kType, int kTerms>
class Pass {
 public:
  Pass(const PackedMatrix& w, const QuantizedRows& x, const Blocks& blocks, int first_block)
      : w_(w),
        x_(x),
        blocks_(blocks),
        first_block_(first_block),
        count_(std::min(kPassBlocks, blocks.count - first_block)) {}

  template <typename Tiles>
  void multiply_tile(Tiles& tiles, const LinearOutput& y, int tile) {
    // Flipping the top bit adds 128.
    const __m512i table =
        _mm512_xor_si512(_mm512_broadcast_i32x4(load_table(w_)), _mm512_set1_epi8(int8_t(0x80)));
    std::fill_n(&accumulators_[0][0][0], sizeof accumulators_ / sizeof(float), 0.0f);
    const uint8_t* codes = w_.tile(tile);
    const int code_bytes = w_.group * (kType == WeightType::kInt8 ? 32 : 16);
    // A step's sums are added while the tiles work on the next step's.
    FloatStep step{};
    int turn = 0;
    for (int j = 0; j < w_.cols / w_.group; ++j, codes += w_.block_bytes()) {
      const uint8_t* panel = panel_;
      if constexpr (kType == WeightType::kInt8) {
        panel = codes;  // in a tile's layout already
        for (int at = 0; at < code_bytes; at += 64) prefetch_weights<Prefetch::kFar>(codes + at);
      } else {
        unpack<kType>(codes, table, w_.group, panel_);
      }
      for (int block = 0; block < count_; block += kStepBlocks) {
        multiply(tiles, block, j, panel, dots_[turn % 2]);
        if (turn > 0) add(step, dots_[(turn - 1) % 2]);
        step = {codes + code_bytes, j, block};
        ++turn;
      }
    }
    add(step, dots_[(turn - 1) % 2]);
    write(y, tile);
  }

 private:
  static constexpr int kStepBlocks = kTerms == 2 ? 1 : 2;

  int64_t first_row(int block) const { return blocks_.begin(first_block_ + block); }

  template <typename Tiles>
  REDOUBT_INLINE void multiply(Tiles& tiles, int block, int group, const uint8_t* panel, Sums& dots) const {
    const int64_t column = int64_t(group) * w_.group;
    const int8_t* const first = x_.values + first_row(block) * x_.cols + column;
    if constexpr (kTerms == 2) {
      multiply_group<2>(tiles, {first, x_.low_values + first_row(block) * x_.cols + column}, x_.cols, panel,
                        w_.group, dots);
    } else if (block + 1 < count_) {
      multiply_group<2>(tiles, {first, x_.values + first_row(block + 1) * x_.cols + column}, x_.cols, panel,
                        w_.group, dots);
    } else {
      multiply_group<1>(tiles, {first, nullptr}, x_.cols, panel, w_.group, dots);
    }
  }

  // The float step of a group, as kernel_table.h writes it down.
  REDOUBT_INLINE void add(const FloatStep& step, const Sums& dots) {
    const __m512 scales[2] = {load_halves(step.halves), load_halves(step.halves + 32)};
    __m512 minima[2] = {};
    if constexpr (kType == WeightType::kAsymInt4) {
      minima[0] = load_halves(step.halves + 64);
      minima[1] = load_halves(step.halves + 96);
    }
    const int64_t groups = w_.cols / w_.group;
    for (int block = step.block; block < std::min(step.block + kStepBlocks, count_); ++block) {
      const int64_t first = first_row(block) * groups + step.group;
      const float *x_scale = x_.scales + first, *x_offset = x_.offsets + first;
      const int32_t* start = x_.starts + first;
      const int height = blocks_.height;
      for (int r = 0; r < height; ++r, x_scale += groups, x_offset += groups, start += groups) {
        for (int c = 0; c < 2; ++c) {
          __m512i dot = _mm512_load_si512(&dots[block - step.block][r][16 * c]);
          if constexpr (kTerms == 2) {
            dot = _mm512_add_epi32(_mm512_slli_epi32(dot, 8), _mm512_load_si512(&dots[1][r][16 * c]));
          }
          if constexpr (kType != WeightType::kAsymInt4) {
            dot = _mm512_add_epi32(dot, _mm512_set1_epi32(*start * (kType == WeightType::kSymInt4 ? 1 : 16)));
          }
          float* sum = &accumulators_[block][r][16 * c];
          __m512 acc = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot), _mm512_set1_ps(*x_scale)),
                                       scales[c], _mm512_load_ps(sum));
          if constexpr (kType == WeightType::kAsymInt4) {
            acc = _mm512_fmadd_ps(_mm512_set1_ps(*x_offset), minima[c], acc);
          }
          _mm512_store_ps(sum, acc);
        }
      }
    }
  }

  void write(const LinearOutput& y, int tile) const {
    for (int block = 0; block < count_; ++block) {
      for (int r = blocks_.first_own(first_block_ + block); r < blocks_.height; ++r) {
        const int row = int(first_row(block)) + r;
        for (int c = 0; c < 2; ++c) {
          write_outputs(w_, y, row, tile * kTileOutputs + 16 * c,
                        _mm512_load_ps(&accumulators_[block][r][16 * c]));
        }
      }
    }
  }

  const PackedMatrix& w_;
  const QuantizedRows& x_;
  const Blocks& blocks_;
  const int first_block_, count_;
  alignas(64) float accumulators_[kPassBlocks][kTileRows][kTileOutputs];
  alignas(64) Sums dots_[2];
  alignas(64) uint8_t panel_[kMostGroup * kTileOutputs];
};

template <WeightType kType, int kTerms, typename Tiles>
void multiply(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
              int tile_end) {
  const Blocks blocks(x.rows);
  Tiles tiles(tile_shapes(blocks.height, w.group));
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    for (int block = 0; block < blocks.count; block += kPassBlocks) {
      Pass<kType, kTerms>(w, x, blocks, block).multiply_tile(tiles, y, tile);
    }
  }
}

template <WeightType kType, typename Tiles>
void multiply_terms(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                    int tile_end) {
  if (x.low_values == nullptr) {
    multiply<kType, 1, Tiles>(w, x, y, tile_begin, tile_end);
  } else {
    multiply<kType, 2, Tiles>(w, x, y, tile_begin, tile_end);
  }
}

template <typename Tiles, int kFewest>
void linear_int8(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end) {
  if (x.rows < kFewest) return avx512_vnni::linear_int8(w, x, y, tile_begin, tile_end);
  switch (w.type) {
    case WeightType::kSymInt4:
      return multiply_terms<WeightType::kSymInt4, Tiles>(w, x, y, tile_begin, tile_end);
    case WeightType::kAsymInt4:
      return multiply_terms<WeightType::kAsymInt4, Tiles>(w, x, y, tile_begin, tile_end);
    case WeightType::kLut4:
      return multiply_terms<WeightType::kLut4, Tiles>(w, x, y, tile_begin, tile_end);
    default:
      return multiply_terms<WeightType::kInt8, Tiles>(w, x, y, tile_begin, tile_end);
  }
}

}  // namespace
}  // namespace redoubt::amx_int8

#pragma GCC pop_options

namespace redoubt {

void fill_linear_amx_int8(KernelTable& table) {
  table.linear_int8 = amx_int8::linear_int8<AmxTiles, amx_int8::kFewestRows>;
}

void fill_linear_amx_int8_emulated(KernelTable& table) {
  table.linear_int8 = amx_int8::linear_int8<EmulatedTiles, 1>;
}

}  // namespace redoubt
