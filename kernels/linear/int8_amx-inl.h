// Integer weights times int8 activations in AMX tiles. For a tile of outputs, groups of weights are taken two
// at a time. Their codes are unpacked, as signed numbers, into the layout of tdpbssd and multiplied with the
// rows, 32 at a time. The float step of each group is done on the stored sums, in the order of the contract,
// while the tiles multiply the next rows. Few rows go to the AVX-512 VNNI kernel, whose results are the same.
//
// A tdpbssd does the work of 256 vpdpbusd, but its sums can leave the tiles through memory only, and tile
// instructions slow down float multiplications that follow. Cycle counts, from which the constants below
// follow, are in docs/tuning.md.
//
// Included inside the namespace and target region of linear/int8_amx.cc and of
// testing/linear_int8_amx_emulated.cc. Tiles, below, are the processor's or emulated ones.

using avx512::load_codes;
using avx512::load_halves;
using avx512::load_table;
using avx512::write_outputs;

// With fewer rows, unpacking takes more time than the tiles save.
constexpr int fewest_rows(int group) { return group == 32 ? 17 : 9; }
constexpr int kPassBlocks = 32;  // of rows, whose fp32 sums stay in the second-level cache
// Groups of weights in a step. With four, the stored sums would not fit the first-level cache.
constexpr int kStepGroups = 2;
constexpr int kMostGroup = 128;

// Rows [0, rows) in `count` blocks of `height`, which fits the tiles. All blocks have the same height,
// because the shape of the tiles is set once a call. The last block begins early enough to end at the last
// row, so it may compute rows again that an earlier block has; its own rows are the others.
struct Blocks {
  int rows, count, height;

  explicit Blocks(int total)
      : rows(total), count((total + kTileRows - 1) / kTileRows), height((total + count - 1) / count) {}
  int begin(int block) const { return std::min(block * height, rows - height); }
  // The first row of a block that no earlier block has, from its begin.
  int first_own(int block) const { return block * height - begin(block); }
};

// The tile registers: two pairs of sums, each of a block of inputs (with two terms, of one of its terms) by
// two columns of 16 outputs; then the factors.
enum Register { kSums00, kSums01, kSums10, kSums11, kInputs0, kInputs1, kCodes0, kCodes1 };

TileConfig tile_shapes(int height, int group) {
  const int depth = std::min(group, kTileRowBytes);  // inputs of one tdpbssd
  TileConfig config;
  for (int tile : {kSums00, kSums01, kSums10, kSums11}) config.shape(tile, height, kTileRowBytes);
  for (int tile : {kInputs0, kInputs1}) config.shape(tile, height, depth);
  for (int tile : {kCodes0, kCodes1}) config.shape(tile, depth / 4, kTileRowBytes);
  return config;
}

// Sums of dot products as floats. They start from kMagic's bits and never leave the range in which a unit of
// those bits is one: |dot| <= 128 * 128 * 128, so that what is stored is, exactly, kMagic + dot.
constexpr float kMagic = 0x1.8p23f;
static_assert(kMostGroup * 128 * 128 < 1 << 22);
using Sums = float[2][kTileRows][kTileOutputs];
alignas(64) constexpr auto kFirstSums = [] {
  std::array<float, kTileRowBytes / 4> row;
  row.fill(kMagic);
  return row;
}();

// Products of one block of inputs and a group's codes for two columns of 16 outputs. Two pairs of tile
// registers take turns: the sums of a product are stored after the next product has been started, so that
// loads, products and stores overlap.
template <typename Tiles>
class Products {
 public:
  explicit Products(Tiles& tiles) : tiles_(tiles) {}

  // sums: [kTileRows][kTileOutputs]; written by the next add() or finish(). inputs: rows `stride` bytes
  // apart. codes: [2][group / 4][16][4]. has_codes: the registers hold these codes already.
  REDOUBT_INLINE void add(const int8_t* inputs, int64_t stride, const int8_t* codes, int group,
                          bool has_codes, float* sums) {
    if (turn_ == 0) {
      multiply<kSums00, kSums01, kInputs0>(inputs, stride, codes, group, has_codes);
    } else {
      multiply<kSums10, kSums11, kInputs1>(inputs, stride, codes, group, has_codes);
    }
    finish();
    pending_ = sums;
    turn_ ^= 1;
  }

  // Stores the sums of the last product, if they are not stored yet.
  REDOUBT_INLINE void finish() {
    if (pending_ == nullptr) return;
    if (turn_ == 0) {
      store<kSums10, kSums11>();
    } else {
      store<kSums00, kSums01>();
    }
    pending_ = nullptr;
  }

 private:
  template <int kSums0, int kSums1, int kInputs>
  REDOUBT_INLINE void multiply(const int8_t* inputs, int64_t stride, const int8_t* codes, int group,
                               bool has_codes) {
    if (!has_codes) load_codes(codes, group);
    tiles_.template load<kInputs>(inputs, stride);
    // tilezero would do too, but a product waits longer for it.
    tiles_.template load<kSums0>(kFirstSums.data(), 0);
    tiles_.template load<kSums1>(kFirstSums.data(), 0);
    tiles_.template dot_product<kSums0, kInputs, kCodes0>();
    tiles_.template dot_product<kSums1, kInputs, kCodes1>();
    if (group <= kTileRowBytes) return;
    load_codes(codes + kTileRowBytes * 16, group);
    tiles_.template load<kInputs>(inputs + kTileRowBytes, stride);
    tiles_.template dot_product<kSums0, kInputs, kCodes0>();
    tiles_.template dot_product<kSums1, kInputs, kCodes1>();
  }
  REDOUBT_INLINE void load_codes(const int8_t* codes, int group) {
    tiles_.template load<kCodes0>(codes, kTileRowBytes);
    tiles_.template load<kCodes1>(codes + group * 16, kTileRowBytes);
  }
  template <int kSums0, int kSums1>
  REDOUBT_INLINE void store() {
    tiles_.template store<kSums0>(pending_, kTileOutputs * 4);
    tiles_.template store<kSums1>(pending_ + kTileOutputs / 2, kTileOutputs * 4);
  }

  Tiles& tiles_;
  float* pending_ = nullptr;
  int turn_ = 0;
};

// Unpacks a group's codes minus their zero point, in the order of the inputs: [2][group / 4][16][4]. The low
// nibbles of 64 packed bytes are inputs 8 kb .. 8 kb + 3, the high ones the next four. Codes of asym_int4
// stay as they are, because their zero point is a float.
template <WeightType kType>
REDOUBT_INLINE void unpack(const uint8_t* codes, __m512i table, int group, int8_t* panel) {
  const __m512i low_nibble = _mm512_set1_epi8(15), eight = _mm512_set1_epi8(8);
  const __m512i top_bit = _mm512_set1_epi8(int8_t(0x80));
  int8_t* const columns[2] = {panel, panel + group * 16};
  const auto finish = [&](__m512i nibbles) __attribute__((always_inline)) {
    if constexpr (kType == WeightType::kLut4) return _mm512_shuffle_epi8(table, nibbles);
    if constexpr (kType == WeightType::kSymInt4) return _mm512_sub_epi8(nibbles, eight);
    return nibbles;
  };
  if constexpr (kType == WeightType::kInt8) {
    for (int at = 0; at < group * 16; at += 64, codes += 128) {
      for (int c = 0; c < 2; ++c) {
        prefetch_weights<Prefetch::kFar>(codes + 64 * c);
        _mm512_store_si512(columns[c] + at, _mm512_xor_si512(load_codes(codes + 64 * c), top_bit));
      }
    }
  } else {
    for (int at = 0; at < group * 16; at += 128, codes += 128) {
      for (int c = 0; c < 2; ++c) {
        prefetch_weights<Prefetch::kFar>(codes + 64 * c);
        const __m512i pair = load_codes(codes + 64 * c);
        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(pair, 4), low_nibble);
        _mm512_store_si512(columns[c] + at, finish(_mm512_and_si512(pair, low_nibble)));
        _mm512_store_si512(columns[c] + at + 64, finish(high));
      }
    }
  }
}

// Some groups of weights times two blocks of rows, or both terms of one block.
struct Step {
  int first_group, groups;
  int block;  // counted from the pass's first
};

// A tile of outputs times up to kPassBlocks blocks of rows.
template <WeightType kType, int kTerms>
class Pass {
 public:
  Pass(const PackedMatrix& w, const QuantizedRows& x, const Blocks& blocks)
      : w_(w),
        x_(x),
        blocks_(blocks),
        groups_(w.cols / w.group),
        table_(_mm512_broadcast_i32x4(load_table(w))) {}

  template <typename Tiles>
  void multiply_tile(Tiles& tiles, const LinearOutput& y, int tile, Range blocks) {
    count_ = blocks.end - blocks.begin;
    for (int block = 0; block < count_; ++block) first_rows_[block] = blocks_.begin(blocks.begin + block);
    std::fill_n(&accumulators_[0][0][0], size_t(count_) * kTileRows * kTileOutputs, 0.0f);
    Products<Tiles> products(tiles);
    Step last{};
    int turn = 0;
    for (int first = 0; first < groups_; first += kStepGroups) {
      const int groups = std::min(kStepGroups, groups_ - first);
      for (int g = 0; g < groups; ++g) take_group(tile, first + g);
      for (int block = 0; block < count_; block += kStepBlocks, ++turn) {
        const Step step{first, groups, block};
        // This step's products and the last step's float step, part by part, so that they overlap.
        for (int part = 0; part < kParts; ++part) {
          for (int g = begin_of_part(groups, part); g < begin_of_part(groups, part + 1); ++g) {
            add_products(products, step, g, dots_[turn % 2][g]);
          }
          if (turn > 0) add_part(last, part, dots_[(turn - 1) % 2]);
        }
        last = step;
      }
    }
    products.finish();
    for (int part = 0; part < kParts; ++part) add_part(last, part, dots_[(turn - 1) % 2]);
    write(y, tile, blocks.begin);
  }

 private:
  static constexpr int kStepBlocks = kTerms == 2 ? 1 : 2;
  static constexpr int kPartRows = 8;  // whose sums stay in registers
  static constexpr int kParts = kStepBlocks * kTileRows / kPartRows;

  // How a step's groups are spread over its parts. The first part has at least one group, whose product
  // stores the last sums of the step before.
  static int begin_of_part(int groups, int part) { return (groups * part + kParts - 1) / kParts; }
  // Where a group is unpacked: beside the groups of the step before, whose float step still needs them.
  static int slot_of(int group) { return group % (2 * kStepGroups); }

  REDOUBT_INLINE void take_group(int tile, int group) {
    const uint8_t* codes = w_.tile(tile) + size_t(group) * w_.block_bytes();
    const int slot = slot_of(group);
    unpack<kType>(codes, table_, w_.group, codes_[slot]);
    const uint8_t* halves = codes + code_bytes(kType, w_.group);
    for (int c = 0; c < 2; ++c) {
      prefetch_weights<Prefetch::kFar>(halves + 64 * c);
      _mm512_store_ps(&scales_[slot][16 * c], load_halves(halves + 32 * c));
      if constexpr (kType == WeightType::kAsymInt4) {
        _mm512_store_ps(&minima_[slot][16 * c], load_halves(halves + 64 + 32 * c));
      }
    }
  }

  template <typename Tiles>
  REDOUBT_INLINE void add_products(Products<Tiles>& products, const Step& step, int g, Sums& dots) const {
    const int64_t column = int64_t(step.first_group + g) * w_.group, stride = x_.cols;
    const int8_t* const codes = codes_[slot_of(step.first_group + g)];
    const int64_t first = first_rows_[step.block] * stride + column;
    products.add(x_.values + first, stride, codes, w_.group, false, &dots[0][0][0]);
    const bool has_codes = w_.group <= kTileRowBytes;
    if constexpr (kTerms == 2) {
      products.add(x_.low_values + first, stride, codes, w_.group, has_codes, &dots[1][0][0]);
    } else if (step.block + 1 < count_) {
      const int8_t* const second = x_.values + first_rows_[step.block + 1] * stride + column;
      products.add(second, stride, codes, w_.group, has_codes, &dots[1][0][0]);
    }
  }

  // The float step for the rows of a part.
  REDOUBT_INLINE void add_part(const Step& step, int part, const Sums (&dots)[kStepGroups]) {
    const int slot = part * kPartRows / kTileRows, first = part * kPartRows % kTileRows;
    if (step.block + slot >= count_) return;
    const int rows = std::min(kPartRows, blocks_.height - first);
    if (rows == kPartRows) return add_rows<kPartRows>(step, slot, first, dots);
    add_few_rows(rows, step, slot, first, dots, std::make_integer_sequence<int, kPartRows>());
  }

  // The same for fewer than kPartRows rows; kRows lists the possible numbers.
  template <int... kRows>
  [[gnu::noinline]] void add_few_rows(int rows, const Step& step, int slot, int first,
                                      const Sums (&dots)[kStepGroups],
                                      std::integer_sequence<int, 0, kRows...>) {
    ((rows == kRows ? add_rows<kRows>(step, slot, first, dots) : void()), ...);
  }

  // The float step of rows [first, first + kRows) of a step's block, as contract/kernel_table.h writes it
  // down.
  template <int kRows>
  REDOUBT_INLINE void add_rows(const Step& step, int slot, int first, const Sums (&dots)[kStepGroups]) {
    const __m512 magic = _mm512_set1_ps(kMagic);
    const int block = step.block + slot;
    const int64_t groups = groups_, at = (first_rows_[block] + first) * groups + step.first_group;
    const float *x_scales = x_.scales + at, *x_offsets = x_.offsets + at;
    float (*const sums)[kTileOutputs] = accumulators_[block] + first;
    __m512 acc[kRows][2];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      acc[r][0] = _mm512_load_ps(&sums[r][0]);
      acc[r][1] = _mm512_load_ps(&sums[r][16]);
    }
    for (int g = 0; g < step.groups; ++g, ++x_scales, ++x_offsets) {
      const float* const w_scales = scales_[slot_of(step.first_group + g)];
      const __m512 scales[2] = {_mm512_load_ps(w_scales), _mm512_load_ps(w_scales + 16)};
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512 x_scale = _mm512_set1_ps(x_scales[r * groups]);
#pragma GCC unroll 2
        for (int c = 0; c < 2; ++c) {
          __m512 dot = _mm512_sub_ps(_mm512_load_ps(&dots[g][slot][first + r][16 * c]), magic);
          if constexpr (kTerms == 2) {
            const __m512 low = _mm512_sub_ps(_mm512_load_ps(&dots[g][1][first + r][16 * c]), magic);
            dot = _mm512_fmadd_ps(dot, _mm512_set1_ps(256.0f), low);  // as the integer rounds
          }
          acc[r][c] = _mm512_fmadd_ps(_mm512_mul_ps(dot, x_scale), scales[c], acc[r][c]);
        }
      }
      if constexpr (kType == WeightType::kAsymInt4) {
        const float* const w_minima = minima_[slot_of(step.first_group + g)];
        const __m512 minima[2] = {_mm512_load_ps(w_minima), _mm512_load_ps(w_minima + 16)};
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const __m512 x_offset = _mm512_set1_ps(x_offsets[r * groups]);
          acc[r][0] = _mm512_fmadd_ps(x_offset, minima[0], acc[r][0]);
          acc[r][1] = _mm512_fmadd_ps(x_offset, minima[1], acc[r][1]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      _mm512_store_ps(&sums[r][0], acc[r][0]);
      _mm512_store_ps(&sums[r][16], acc[r][1]);
    }
  }

  void write(const LinearOutput& y, int tile, int first_block) const {
    for (int block = 0; block < count_; ++block) {
      for (int r = blocks_.first_own(first_block + block); r < blocks_.height; ++r) {
        const int row = int(first_rows_[block]) + r;
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
  const int groups_;
  const __m512i table_;
  int count_ = 0;  // of blocks
  int64_t first_rows_[kPassBlocks];
  alignas(64) float accumulators_[kPassBlocks][kTileRows][kTileOutputs];
  alignas(64) Sums dots_[2][kStepGroups];
  alignas(64) float scales_[2 * kStepGroups][kTileOutputs];
  alignas(64) float minima_[2 * kStepGroups][kTileOutputs];
  alignas(64) int8_t codes_[2 * kStepGroups][kMostGroup * kTileOutputs];  // [2][group / 4][16][4]
};

template <WeightType kType, int kTerms, typename Tiles>
void multiply(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
              int tile_end) {
  const Blocks blocks(x.rows);
  Tiles tiles(tile_shapes(blocks.height, w.group));
  Pass<kType, kTerms> pass(w, x, blocks);
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    for (int block = 0; block < blocks.count; block += kPassBlocks) {
      pass.multiply_tile(tiles, y, tile, {block, std::min(block + kPassBlocks, blocks.count)});
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

template <typename Tiles, bool kAnyRows>
void linear_int8(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end) {
  if (!kAnyRows && x.rows < fewest_rows(w.group)) {
    return avx512_vnni::linear_int8(w, x, y, tile_begin, tile_end);
  }
  with_integer_type(w.type, [&](auto type) { multiply_terms<type(), Tiles>(w, x, y, tile_begin, tile_end); });
}
