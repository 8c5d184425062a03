// Paged attention of prompts in AMX tiles; attention_bf16_scalar.cc defines the result.
//
// Rows are (query token, head) pairs, token by token, in tiles of 16. A partition's keys and values are
// brought once into the form that tiles take, then tiles of rows take their turns: scores = rows x keys, a
// softmax per row, outputs = weights x values. Scores of keys past a row's last are computed, perhaps from
// garbage, but never read; values past the last that any row sees are zero.
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "amx_tiles.h"
#include "ops_vector.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")

namespace redoubt::amx_bf16 {
namespace {
#include "vector_avx512-inl.h"

#include "exp2-inl.h"

#include "attention_rows-inl.h"

constexpr int kStep = 32;  // addends of one product
constexpr int kPartitionPages = kPartitionTokens / kPageTokens;
constexpr int kBlockTiles = 16;  // of rows that take turns on a partition
constexpr int kBlockRows = kBlockTiles * kTileRows;
// Scores of a row are this far apart: not a power of two, so that rows do not fall in the same cache sets.
constexpr int kScoreStride = kPartitionTokens + 16;
constexpr float kCodeScale = 0x1p-16f;  // int8 codes are multiplied as if they were 2^16 times as large
static_assert(kPageTokens == kStep && kTileRowBytes == 2 * kStep);

// The registers. Scores are sums of rows by keys, of which a page has two tiles; outputs are sums of rows by
// columns, of which kOutputTiles are done at once.
enum ScoreRegister {
  kScores0,
  kScores1,
  kKeys0,
  kKeys1,
  kQueries
};  // kQueries: one for each kStep of head_dim
enum OutputRegister { kOutputs, kWeights = 4, kValues0, kValues1 };  // kOutputs: four
constexpr int kOutputTiles = 4;

TileConfig tile_shapes() {
  TileConfig config;
  for (int tile = 0; tile < kTileRegisters; ++tile) config.shape(tile, kTileRows, kTileRowBytes);
  return config;
}

// Scratch memory: every part is a multiple of 64 bytes.
struct Scratch {
  uint16_t* queries;    // [kBlockTiles][head_dim / kStep][kTileRows][kStep]
  uint16_t* keys;       // [kPartitionPages][head_dim / 2][kPageTokens][2], over int8 pages
  uint16_t* values;     // [kPartitionPages][kPageTokens / 2][head_dim][2], columns as restore_columns says
  float* scores;        // [kTileRows][kScoreStride], then the weights as bf16 in their place
  float* outputs;       // [kTileRows][head_dim]
  float* maxima;        // [kBlockRows]
  float* sums;          // [kBlockRows]
  float* key_scales;    // [kPartitionTokens], over int8 pages
  float* value_scales;  // [kPartitionTokens]

  Scratch(void* memory, int head_dim) {
    auto* halves = static_cast<uint16_t*>(memory);
    const auto take = [&](int64_t count) { return std::exchange(halves, halves + count); };
    queries = take(int64_t(kBlockRows) * head_dim);
    keys = take(int64_t(kPartitionTokens) * head_dim);
    values = take(int64_t(kPartitionTokens) * head_dim);
    auto* floats = reinterpret_cast<float*>(halves);
    const auto take_floats = [&](int64_t count) { return std::exchange(floats, floats + count); };
    scores = take_floats(kTileRows * kScoreStride);
    outputs = take_floats(int64_t(kTileRows) * head_dim);
    maxima = take_floats(kBlockRows);
    sums = take_floats(kBlockRows);
    key_scales = take_floats(kPartitionTokens);
    value_scales = take_floats(kPartitionTokens);
  }
  static size_t bytes(int head_dim) {
    const size_t halves = size_t(kBlockRows + 2 * kPartitionTokens) * head_dim;
    const size_t floats =
        kTileRows * kScoreStride + size_t(kTileRows) * head_dim + 2 * kBlockRows + 2 * kPartitionTokens;
    return halves * 2 + floats * 4;
  }
};

REDOUBT_INLINE __m512i round_to_bf16(F32s low, F32s high) { return __m512i(_mm512_cvtne2ps_pbh(high, low)); }

// 32 int8 codes as bf16, times 2^16.
REDOUBT_INLINE __m512i widen_codes(const int8_t* codes) {
  const Bits words = load_int8_pairs(codes);
  const __m512 even = _mm512_cvtepi32_ps(_mm512_slli_epi32(words, 16));
  const __m512 odd = _mm512_cvtepi32_ps(_mm512_and_si512(words, _mm512_set1_epi32(int32_t(0xffff0000))));
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(_mm512_castps_si512(even), 16),
                                 _mm512_castps_si512(odd));
}

// Over bf16 pages, 32 columns come as the first and the second eight-byte halves of each 16 bytes of a page's
// row, which is how two of its rows interleave; this puts a row of outputs right.
REDOUBT_INLINE void restore_columns(float* outputs, int head_dim) {
  const __m512i low = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0),
                high = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
  for (int d = 0; d < head_dim; d += 2 * kLanes) {
    const __m512d a = _mm512_castps_pd(load(outputs + d)), b = _mm512_castps_pd(load(outputs + d + kLanes));
    store(outputs + d, _mm512_castpd_ps(_mm512_permutex2var_pd(a, low, b)));
    store(outputs + d + kLanes, _mm512_castpd_ps(_mm512_permutex2var_pd(a, high, b)));
  }
}

// One partition's keys and values as tiles take them.
struct Partition {
  const uint16_t* keys[kPartitionPages];  // [head_dim / 2][kPageTokens][2]
  int pages = 0;
};

// A page's values; those of tokens from `tokens` on are zero.
void interleave_values(const uint16_t* values, int tokens, int head_dim, uint16_t* pairs) {
  for (int t = 0; t < kPageTokens; t += 2, values += 2 * head_dim) {
    for (int d = 0; d < head_dim; d += kStep, pairs += 2 * kStep) {
      const __m512i zero = _mm512_setzero_si512();
      const __m512i first = t < tokens ? _mm512_loadu_si512(values + d) : zero;
      const __m512i second = t + 1 < tokens ? _mm512_loadu_si512(values + head_dim + d) : zero;
      _mm512_store_si512(pairs, _mm512_unpacklo_epi16(first, second));
      _mm512_store_si512(pairs + kStep, _mm512_unpackhi_epi16(first, second));
    }
  }
}

void widen_page(const int8_t* codes, int head_dim, uint16_t* widened) {
  for (int i = 0; i < head_dim * kPageTokens; i += kStep) {
    _mm512_store_si512(widened + i, widen_codes(codes + i));
  }
}

// Of which rows see `keys` keys at most.
Partition take_partition(const AttentionTask& task, int p, int keys, const Scratch& scratch) {
  const int head_dim = task.kv.head_dim;
  const size_t page_values = size_t(head_dim) * kPageTokens;
  Partition partition;
  partition.pages = (keys + kPageTokens - 1) / kPageTokens;
  for (int page = 0; page < partition.pages; ++page) {
    const std::byte* const block = page_block(task.kv, p * kPartitionPages + page);
    const std::byte* const values = block + values_offset_bytes(task.kv.type, head_dim);
    uint16_t* const pairs = scratch.values + size_t(page) * page_values;
    if (task.kv.type == KvType::kBf16) {
      partition.keys[page] = reinterpret_cast<const uint16_t*>(block);
      interleave_values(reinterpret_cast<const uint16_t*>(values), keys - page * kPageTokens, head_dim,
                        pairs);
      continue;
    }
    uint16_t* const widened = scratch.keys + size_t(page) * page_values;
    partition.keys[page] = widened;
    widen_page(reinterpret_cast<const int8_t*>(block), head_dim, widened);
    widen_page(reinterpret_cast<const int8_t*>(values), head_dim, pairs);
    const auto* const scales = reinterpret_cast<const uint16_t*>(block + scales_offset_bytes(head_dim));
    for (int t = 0; t < kPageTokens; t += kLanes) {
      store(scratch.key_scales + page * kPageTokens + t, mul(load_bf16(scales + t), set(kCodeScale)));
      store(scratch.value_scales + page * kPageTokens + t, load_bf16(scales + kPageTokens + t));
    }
  }
  return partition;
}

// Queries of rows first .. end as tiles have them, the last tile filled up with zeros.
void pack_queries(const AttentionTask& task, int64_t first, int64_t end, uint16_t* packed) {
  const F32s factor = set(task.scale * kLog2eHigh);
  const int steps = task.kv.head_dim / kStep;
  for (; first < end; first += kTileRows) {
    for (int step = 0; step < steps; ++step) {
      for (int64_t row = first; row < first + kTileRows; ++row, packed += kStep) {
        __m512i pairs = _mm512_setzero_si512();
        if (row < end) {
          const float* const query = query_of(task, row) + step * kStep;
          pairs = round_to_bf16(mul(load(query), factor), mul(load(query + kLanes), factor));
        }
        _mm512_store_si512(packed, pairs);
      }
    }
  }
}

alignas(64) constexpr float kZeros[kLanes] = {};

template <typename Tiles>
class Attention {
 public:
  Attention(const AttentionTask& task, void* memory)
      : tiles_(tile_shapes()),
        task_(task),
        scratch_(memory, task.kv.head_dim),
        head_dim_(task.kv.head_dim),
        rows_(int64_t(task.query_tokens) * task.group_heads) {}

  void run() {
    for (int64_t first = 0; first < rows_; first += kBlockRows)
      attend_block(first, std::min(first + kBlockRows, rows_));
  }

  void run_partition(int p, float* states) {
    for (int64_t first = 0; first < rows_; first += kBlockRows) {
      const int64_t end = std::min(first + kBlockRows, rows_);
      pack_queries(task_, first, end, scratch_.queries);
      const Partition partition = take_partition(task_, p, keys_of(end - 1, p), scratch_);
      for (int64_t row = first; row < end; row += kTileRows) {
        const int64_t last = std::min(row + kTileRows, end);
        if (keys_of(last - 1, p) > 0) attend_tile(partition, p, first, row, last);
        for (int64_t r = row; r < last; ++r) {
          float* const state = states + r * state_floats(head_dim_);
          state[kStateMax] = scratch_.maxima[r - first];
          state[kStateSum] = scratch_.sums[r - first];
          std::memcpy(state + kStateOutput, output_row(r - row), size_t(head_dim_) * sizeof(float));
        }
      }
    }
  }

 private:
  int keys_of(int64_t row, int p) const { return keys_in_partition(visible_to(task_, row), p); }
  float* output_row(int64_t row) const { return scratch_.outputs + row * head_dim_; }

  void attend_block(int64_t first, int64_t end) {
    pack_queries(task_, first, end, scratch_.queries);
    float maxima[kBlockRows], sums[kBlockRows];
    for (int p = 0; p < partitions_of(visible_to(task_, end - 1)); ++p) {
      const Partition partition = take_partition(task_, p, keys_of(end - 1, p), scratch_);
      for (int64_t row = first; row < end; row += kTileRows) {
        const int64_t last = std::min(row + kTileRows, end);
        if (keys_of(last - 1, p) == 0) continue;
        attend_tile(partition, p, first, row, last);
        for (int64_t r = row; r < last; ++r) {
          const int64_t at = r - first;
          if (p == 0) {
            maxima[at] = scratch_.maxima[at];
            sums[at] = scratch_.sums[at];
            std::memcpy(output_of(task_, r), output_row(r - row), size_t(head_dim_) * sizeof(float));
          } else if (keys_of(r, p) > 0) {
            merge_row(&maxima[at], &sums[at], output_of(task_, r), scratch_.maxima[at], scratch_.sums[at],
                      output_row(r - row), head_dim_);
          }
        }
      }
    }
    for (int64_t r = first; r < end; ++r) normalize_row(sums[r - first], output_of(task_, r), head_dim_);
  }

  // Rows row .. last of the block that begins at `first`: their states, to maxima, sums and outputs.
  void attend_tile(const Partition& partition, int p, int64_t first, int64_t row, int64_t last) {
    const int pages = (keys_of(last - 1, p) + kPageTokens - 1) / kPageTokens;
    const uint16_t* const queries = scratch_.queries + (row - first) * head_dim_;
    switch (head_dim_ / kStep) {
      case 1:
        score<1>(partition, pages, queries);
        break;
      case 2:
        score<2>(partition, pages, queries);
        break;
      case 3:
        score<3>(partition, pages, queries);
        break;
      default:
        score<4>(partition, pages, queries);
    }
    if (task_.kv.type == KvType::kInt8) {
      weigh_tile<true>(p, row, last, pages, first);
    } else {
      weigh_tile<false>(p, row, last, pages, first);
    }
    int column = 0;
    for (; column + kOutputTiles * kLanes <= head_dim_; column += kOutputTiles * kLanes)
      add_values<kOutputTiles>(pages, column);
    if (column < head_dim_) add_values<2>(pages, column);
    for (int64_t r = 0; r < last - row; ++r) finish_outputs(output_row(r));
  }

  // Scores of a tile of rows and all keys of `pages` pages. The queries stay in their registers.
  template <int kSteps>
  void score(const Partition& partition, int pages, const uint16_t* queries) {
    constexpr int64_t kTile = kTileRows * kStep;
    tiles_.template load<kQueries>(queries, kTileRowBytes);
    if constexpr (kSteps > 1) tiles_.template load<kQueries + 1>(queries + kTile, kTileRowBytes);
    if constexpr (kSteps > 2) tiles_.template load<kQueries + 2>(queries + 2 * kTile, kTileRowBytes);
    if constexpr (kSteps > 3) tiles_.template load<kQueries + 3>(queries + 3 * kTile, kTileRowBytes);
    for (int page = 0; page < pages; ++page) {
      tiles_.template load<kScores0>(kZeros, 0);
      tiles_.template load<kScores1>(kZeros, 0);
      const uint16_t* const keys = partition.keys[page];
      score_step<kQueries>(keys, 0);
      if constexpr (kSteps > 1) score_step<kQueries + 1>(keys, 1);
      if constexpr (kSteps > 2) score_step<kQueries + 2>(keys, 2);
      if constexpr (kSteps > 3) score_step<kQueries + 3>(keys, 3);
      float* const scores = scratch_.scores + page * kPageTokens;
      tiles_.template store<kScores0>(scores, kScoreStride * 4);
      tiles_.template store<kScores1>(scores + kTileRows, kScoreStride * 4);
    }
  }
  template <int kQuery>
  REDOUBT_INLINE void score_step(const uint16_t* keys, int step) {
    constexpr int64_t kRowBytes = kPageTokens * 4;
    keys += int64_t(step) * kStep * kPageTokens;
    tiles_.template load_streamed<kKeys0>(keys, kRowBytes);
    tiles_.template dot_product_bf16<kScores0, kQuery, kKeys0>();
    tiles_.template load_streamed<kKeys1>(keys + kStep, kRowBytes);
    tiles_.template dot_product_bf16<kScores1, kQuery, kKeys1>();
  }

  // Rows one after the other, but first all maxima: each is waited for.
  template <bool kInt8>
  void weigh_tile(int p, int64_t row, int64_t last, int pages, int64_t first) const {
    const int count = int(last - row);
    float* const maxima = scratch_.maxima + (row - first);
    int keys[kTileRows];
    for (int r = 0; r < count; ++r) {
      keys[r] = keys_of(row + r, p);
      maxima[r] = max_score<kInt8>(scratch_.scores + r * kScoreStride, keys[r]);
    }
    for (int r = 0; r < count; ++r) {
      scratch_.sums[row - first + r] =
          weigh<kInt8>(scratch_.scores + r * kScoreStride, keys[r], pages * kPageTokens, maxima[r]);
    }
  }

  // Scores become weights, as bf16, up to the row's last key; 0 from there to `end`. Returns their sum.
  template <bool kInt8>
  REDOUBT_INLINE float weigh(float* scores, int keys, int end, float maximum) const {
    const F32s max = set(maximum);
    auto* const weights = reinterpret_cast<uint16_t*>(scores);
    F32s sums = set(0.0f);
    int t = 0;
    for (; t + kStep <= keys; t += kStep) weigh_step<kInt8>(scores, t, max, kAllLanes, kAllLanes, sums);
    if (t < keys) {
      weigh_step<kInt8>(scores, t, max, lanes_of(keys - t), lanes_of(keys - t - kLanes), sums);
      t += kStep;
    }
    for (; t < end; t += kStep) _mm512_store_si512(weights + t, _mm512_setzero_si512());
    return sum_of_lanes(sums);
  }

  static constexpr __mmask16 kAllLanes = 0xffff;
  REDOUBT_INLINE static __mmask16 lanes_of(int count) {
    return count >= kLanes ? kAllLanes : count > 0 ? __mmask16((1u << count) - 1) : __mmask16(0);
  }

  // 32 keys' weights, added to `sums` before they are scaled and rounded. real: those that the row sees.
  template <bool kInt8>
  REDOUBT_INLINE void weigh_step(float* scores, int t, F32s max, __mmask16 real0, __mmask16 real1,
                                 F32s& sums) const {
    F32s weights[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __mmask16 real = i == 0 ? real0 : real1;
      const F32s spread = sub(score_at<kInt8>(scores, t + i * kLanes), max);
      const F32s weight = exp2_nonpositive<kExp2ToBf16>(spread, kExp2SmallestBf16);
      weights[i] = _mm512_maskz_mov_ps(real, weight);
      sums = add(sums, weights[i]);
      if constexpr (kInt8) {
        weights[i] = _mm512_maskz_mul_ps(real, weight, load(scratch_.value_scales + t + i * kLanes));
      }
    }
    _mm512_store_si512(reinterpret_cast<uint16_t*>(scores) + t, round_to_bf16(weights[0], weights[1]));
  }

  // Over int8 pages scores have yet to get their key's scale: in both passes, which is less than storing
  // them.
  template <bool kInt8>
  REDOUBT_INLINE F32s score_at(const float* scores, int t) const {
    if constexpr (kInt8) return mul(load(scores + t), load(scratch_.key_scales + t));
    return load(scores + t);
  }

  template <bool kInt8>
  REDOUBT_INLINE float max_score(const float* scores, int keys) const {
    const F32s lowest = set(-std::numeric_limits<float>::infinity());
    F32s largest[2] = {lowest, lowest};
    const auto look = [&](int t, __mmask16 real, F32s& most) __attribute__((always_inline)) {
      most = max_of(_mm512_mask_mov_ps(lowest, real, score_at<kInt8>(scores, t)), most);
    };
    int t = 0;
    for (; t + kStep <= keys; t += kStep) {
      look(t, kAllLanes, largest[0]);
      look(t + kLanes, kAllLanes, largest[1]);
    }
    if (t < keys) {
      look(t, lanes_of(keys - t), largest[0]);
      look(t + kLanes, lanes_of(keys - t - kLanes), largest[1]);
    }
    return max_of_lanes(max_of(largest[0], largest[1]));
  }

  // Outputs of a tile of rows, kCount tiles of columns from `column` on.
  template <int kCount>
  void add_values(int pages, int column) {
    tiles_.template load<kOutputs>(kZeros, 0);
    tiles_.template load<kOutputs + 1>(kZeros, 0);
    if constexpr (kCount > 2) {
      tiles_.template load<kOutputs + 2>(kZeros, 0);
      tiles_.template load<kOutputs + 3>(kZeros, 0);
    }
    const int64_t row_bytes = int64_t(head_dim_) * 4;
    const auto* weights = reinterpret_cast<const uint16_t*>(scratch_.scores);
    const uint16_t* values = scratch_.values + column * 2;
    for (int page = 0; page < pages; ++page, weights += kStep, values += int64_t(kPageTokens) * head_dim_) {
      tiles_.template load<kWeights>(weights, kScoreStride * 4);
      tiles_.template load_streamed<kValues0>(values, row_bytes);
      tiles_.template dot_product_bf16<kOutputs, kWeights, kValues0>();
      tiles_.template load_streamed<kValues1>(values + kStep, row_bytes);
      tiles_.template dot_product_bf16<kOutputs + 1, kWeights, kValues1>();
      if constexpr (kCount > 2) {
        tiles_.template load_streamed<kValues0>(values + 2 * kStep, row_bytes);
        tiles_.template dot_product_bf16<kOutputs + 2, kWeights, kValues0>();
        tiles_.template load_streamed<kValues1>(values + 3 * kStep, row_bytes);
        tiles_.template dot_product_bf16<kOutputs + 3, kWeights, kValues1>();
      }
    }
    float* const outputs = scratch_.outputs + column;
    tiles_.template store<kOutputs>(outputs, row_bytes);
    tiles_.template store<kOutputs + 1>(outputs + kLanes, row_bytes);
    if constexpr (kCount > 2) {
      tiles_.template store<kOutputs + 2>(outputs + 2 * kLanes, row_bytes);
      tiles_.template store<kOutputs + 3>(outputs + 3 * kLanes, row_bytes);
    }
  }

  REDOUBT_INLINE void finish_outputs(float* outputs) const {
    if (task_.kv.type == KvType::kBf16) return restore_columns(outputs, head_dim_);
    for (int d = 0; d < head_dim_; d += kLanes) store(outputs + d, mul(load(outputs + d), set(kCodeScale)));
  }

  Tiles tiles_;
  const AttentionTask& task_;
  const Scratch scratch_;
  const int head_dim_;
  const int64_t rows_;
};

template <typename Tiles>
void attention(const AttentionTask& task, void* memory) {
  Attention<Tiles>(task, memory).run();
}

template <typename Tiles>
void attention_partition(const AttentionTask& task, int p, float* states, void* memory) {
  Attention<Tiles>(task, memory).run_partition(p, states);
}

size_t attention_scratch_bytes(const AttentionTask& task) { return Scratch::bytes(task.kv.head_dim); }

template <typename Tiles>
void fill(KernelTable& table) {
  table.attention_bf16 = attention<Tiles>;
  table.attention_bf16_partition = attention_partition<Tiles>;
  table.attention_bf16_scratch_bytes = attention_scratch_bytes;
}

}  // namespace
}  // namespace redoubt::amx_bf16

#pragma GCC pop_options

namespace redoubt {

void fill_attention_amx_bf16(KernelTable& table) { amx_bf16::fill<AmxTiles>(table); }
void fill_attention_amx_bf16_emulated(KernelTable& table) { amx_bf16::fill<EmulatedTiles>(table); }

}  // namespace redoubt
