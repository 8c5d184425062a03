// Paged attention of prompts in AMX tiles; attention/bf16_scalar.cc defines the result.
//
// Rows are (query token, head) pairs, token by token, in tiles of 16. A partition's keys and values are
// brought once into the form that tiles take, then pairs of tiles of rows, which share what is loaded of keys
// and values, take their turns: scores = rows x keys, a softmax per row, outputs = weights x values. Scores
// of keys past a row's last are computed, perhaps from garbage, but never counted; values past the last that
// any row sees are zero.
//
// The three are apart, because an instruction on tiles slows down vectors for some time after it, and tiles
// that were idle for longer take some time to be fast again. Measured in docs/tuning.md.
//
// Included inside the namespace and target region of attention/bf16_amx.cc and of
// testing/attention_bf16_amx_emulated.cc; Tiles, below, are the processor's or emulated ones.

#include "simd/vector_avx512-inl.h"

#include "simd/exp2-inl.h"

#include "attention/rows-inl.h"

#include "simd/fold_lanes-inl.h"

constexpr int kStep = 32;  // addends of one product
constexpr int kPartitionPages = kPartitionTokens / kPageTokens;
constexpr int kBlockTiles = 16;  // of rows that take turns on a partition
constexpr int kBlockRows = kBlockTiles * kTileRows;
constexpr int kPairTiles = 2;
constexpr int kPairRows = kPairTiles * kTileRows;
constexpr int kPageScores = kTileRows * kPageTokens;
constexpr int kTileScores = kTileRows * kPartitionTokens;
constexpr float kCodeScale = 0x1p-16f;  // int8 codes are multiplied as if they were 2^16 times as large
static_assert(kPageTokens == kStep && kTileRowBytes == 2 * kStep);

// The registers: of each tile of a pair the scores of 16 keys, and its queries, one for each kStep of
// head_dim; then of each tile 32 columns of outputs.
enum ScoreRegister { kScores0, kScores1, kKeys, kQueries = 4 };
enum OutputRegister {
  kOutputs00,
  kOutputs01,
  kOutputs10,
  kOutputs11,
  kWeights0,
  kWeights1,
  kValues0,
  kValues1
};

TileConfig tile_shapes() {
  TileConfig config;
  for (int tile = 0; tile < kTileRegisters; ++tile) config.shape(tile, kTileRows, kTileRowBytes);
  return config;
}

// Scratch memory: every part is a multiple of 64 bytes.
struct Scratch {
  uint16_t* queries;  // [kBlockTiles][head_dim / kStep][kTileRows][kStep]
  uint16_t* keys;     // [kPartitionPages][head_dim / 2][kPageTokens][2], over int8 pages
  uint16_t* values;   // [kPartitionPages][kPageTokens / 2][head_dim][2], columns as restore_columns says
  // [kPairTiles][kPartitionPages][kTileRows][kPageTokens], then the weights as bf16 where a page's scores
  // begin
  float* scores;
  float* outputs;       // [kPairRows][head_dim]
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
    scores = take_floats(kPairTiles * kTileScores);
    outputs = take_floats(int64_t(kPairRows) * head_dim);
    maxima = take_floats(kBlockRows);
    sums = take_floats(kBlockRows);
    key_scales = take_floats(kPartitionTokens);
    value_scales = take_floats(kPartitionTokens);
  }
  static size_t bytes(int head_dim) {
    const size_t halves = size_t(kBlockRows + 2 * kPartitionTokens) * head_dim;
    const size_t floats =
        kPairTiles * kTileScores + size_t(kPairRows) * head_dim + 2 * kBlockRows + 2 * kPartitionTokens;
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
// row, which is how two of its rows interleave; this puts them right.
REDOUBT_INLINE void restore_columns(F32s& low, F32s& high) {
  const __m512i first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0),
                second = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
  const __m512d a = _mm512_castps_pd(low), b = _mm512_castps_pd(high);
  low = _mm512_castpd_ps(_mm512_permutex2var_pd(a, first, b));
  high = _mm512_castpd_ps(_mm512_permutex2var_pd(a, second, b));
}

// 2^x for x <= 0 as attention/bf16_scalar.cc has it.
REDOUBT_INLINE F32s exp2_to_bf16(F32s x) {
  constexpr int kRoundDown = 0x09;  // x less its floor, rounded down too
  x = max_of(set(kExp2SmallestScaled), x);
  const F32s f = _mm512_reduce_ps(x, kRoundDown);
  F32s poly = fma(set(kExp2ToBf16[2]), f, set(kExp2ToBf16[1]));
  poly = fma(poly, f, set(kExp2ToBf16[0]));
  return _mm512_scalef_ps(fma(poly, f, set(1.0f)), x);
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
    const auto* const scales =
        reinterpret_cast<const uint16_t*>(block + scales_offset_bytes(KvType::kInt8, head_dim));
    for (int t = 0; t < kPageTokens; t += kLanes) {
      store(scratch.key_scales + page * kPageTokens + t, mul(load_bf16(scales + t), set(kCodeScale)));
      store(scratch.value_scales + page * kPageTokens + t, load_bf16(scales + kPageTokens + t));
    }
  }
  return partition;
}

// Queries of rows first .. end as tiles have them, the last tile filled up with zeros. Another core may have
// had them last: those of the next tile are prefetched.
void pack_queries(const AttentionTask& task, int64_t first, int64_t end, uint16_t* packed) {
  const F32s factor = set(task.scale * kLog2eHigh);
  const int head_dim = task.kv.head_dim;
  for (; first < end; first += kTileRows, packed += kTileRows * head_dim) {
    for (int r = 0; r < kTileRows; ++r) {
      const int64_t row = first + r, next = row + kTileRows;
      const float* const query = row < end ? query_of(task, row) : nullptr;
      const float* const next_query = next < end ? query_of(task, next) : nullptr;
      uint16_t* to = packed + r * kStep;
      for (int d = 0; d < head_dim; d += kStep, to += kTileRows * kStep) {
        __m512i pairs = _mm512_setzero_si512();
        if (query != nullptr) {
          pairs = round_to_bf16(mul(load(query + d), factor), mul(load(query + d + kLanes), factor));
        }
        _mm512_store_si512(to, pairs);
        if (next_query != nullptr) {
          _mm_prefetch(next_query + d, _MM_HINT_T0);
          _mm_prefetch(next_query + d + kLanes, _MM_HINT_T0);
        }
      }
    }
  }
}

template <typename Tiles, int kSteps, bool kInt8>
class Attention {
 public:
  Attention(const AttentionTask& task, void* memory)
      : tiles_(tile_shapes()),
        task_(task),
        scratch_(memory, kHeadDim),
        rows_(int64_t(task.query_tokens) * task.group_heads) {}

  void run() {
    for (int64_t first = 0; first < rows_; first += kBlockRows)
      attend_block(first, std::min(first + kBlockRows, rows_));
  }

  void run_partition(int p, float* states) {
    for (int64_t first = 0; first < rows_; first += kBlockRows) {
      const int64_t end = std::min(first + kBlockRows, rows_);
      pack_queries(task_, first, end, scratch_.queries);
      attend_partition(p, first, end, [&](int64_t row, const float* outputs) {
        float* const state = states + row * state_floats(kHeadDim);
        state[kStateMax] = scratch_.maxima[row - first];
        state[kStateSum] = scratch_.sums[row - first];
        finish_outputs(outputs, 1.0f, state + kStateOutput);
      });
    }
  }

 private:
  static constexpr int kHeadDim = kSteps * kStep;
  static constexpr int kTileQueries = kTileRows * kHeadDim;
  // Vectors of scores that become weights together: two of each row.
  static constexpr int kTogether = 4;
  using Vectors = F32s[kTileRows];

  int keys_of(int64_t row, int p) const { return keys_in_partition(visible_to(task_, row), p); }

  void attend_block(int64_t first, int64_t end) {
    pack_queries(task_, first, end, scratch_.queries);
    float maxima[kBlockRows], sums[kBlockRows];
    const int partitions = partitions_of(visible_to(task_, end - 1));
    for (int p = 0; p < partitions; ++p) {
      attend_partition(p, first, end, [&](int64_t row, const float* outputs) {
        const int64_t at = row - first;
        float* const to = output_of(task_, row);
        const float max = scratch_.maxima[at], sum = scratch_.sums[at];
        if (partitions == 1) {
          finish_outputs(outputs, 1.0f / sum, to);
        } else if (p == 0) {
          maxima[at] = max;
          sums[at] = sum;
          finish_outputs(outputs, 1.0f, to);
        } else if (keys_of(row, p) > 0) {
          alignas(64) float part[kHeadDim];
          finish_outputs(outputs, 1.0f, part);
          merge_row(&maxima[at], &sums[at], to, max, sum, part, kHeadDim);
        }
      });
    }
    if (partitions == 1) return;
    for (int64_t row = first; row < end; ++row)
      normalize_row(sums[row - first], output_of(task_, row), kHeadDim);
  }

  // Rows first .. end, a block's: their states go to maxima and sums; finish(row, its outputs) is called for
  // each.
  template <typename Finish>
  void attend_partition(int p, int64_t first, int64_t end, const Finish& finish) {
    const Partition partition = take_partition(task_, p, keys_of(end - 1, p), scratch_);
    for (int64_t row = first; row < end; row += kPairRows) {
      const int64_t last = std::min(row + kPairRows, end);
      const int pages = (keys_of(last - 1, p) + kPageTokens - 1) / kPageTokens;
      if (last - row > kTileRows) {
        attend_tiles<2>(partition, p, pages, first, row, last);
      } else {
        attend_tiles<1>(partition, p, pages, first, row, last);
      }
      for (int64_t r = row; r < last; ++r) finish(r, scratch_.outputs + (r - row) * kHeadDim);
    }
  }

  template <int kTiles>
  void attend_tiles(const Partition& partition, int p, int pages, int64_t first, int64_t row, int64_t last) {
    const uint16_t* const queries = scratch_.queries + (row - first) * kHeadDim;
    if constexpr (kTiles * kSteps <= kTileRegisters - kQueries) {
      score<kTiles>(partition, pages, queries, scratch_.scores);
    } else {
      for (int tile = 0; tile < kTiles; ++tile)
        score<1>(partition, pages, queries + tile * kTileQueries, scratch_.scores + tile * kTileScores);
    }
    for (int tile = 0; tile < kTiles; ++tile) {
      int keys[kTileRows];
      for (int r = 0; r < kTileRows; ++r) {
        keys[r] = keys_of(std::min(row + tile * kTileRows + r, last - 1), p);
      }
      const int64_t at = row - first + tile * kTileRows;
      weigh_tile(scratch_.scores + tile * kTileScores, keys, pages, scratch_.maxima + at, scratch_.sums + at);
    }
    for (int column = 0; column < kHeadDim; column += 2 * kLanes) add_values<kTiles>(pages, column);
  }

  // Scores of a tile of rows, or two, and all keys of `pages` pages. The queries stay in their registers.
  template <int kTiles>
  void score(const Partition& partition, int pages, const uint16_t* queries, float* scores) {
    load_queries<kTiles * kSteps>(queries);
    for (int page = 0; page < pages; ++page, scores += kPageScores) {
      score_keys<kTiles>(partition.keys[page], scores);
      score_keys<kTiles>(partition.keys[page] + kStep, scores + kTileRows);
    }
  }
  template <int kCount>
  REDOUBT_INLINE void load_queries(const uint16_t* queries) {
    if constexpr (kCount > 0) {
      load_queries<kCount - 1>(queries);
      tiles_.template load<kQueries + kCount - 1>(queries + (kCount - 1) * kTileRows * kStep, kTileRowBytes);
    }
  }
  // Those of 16 keys.
  template <int kTiles, int kAt = 0>
  REDOUBT_INLINE void score_keys(const uint16_t* keys, float* scores) {
    if constexpr (kAt == 0) {
      tiles_.template zero<kScores0>();
      if constexpr (kTiles == 2) tiles_.template zero<kScores1>();
    }
    if constexpr (kAt < kSteps) {
      tiles_.template load_streamed<kKeys>(keys + kAt * kStep * kPageTokens, kPageTokens * 4);
      tiles_.template dot_product_bf16<kScores0, kQueries + kAt, kKeys>();
      if constexpr (kTiles == 2) tiles_.template dot_product_bf16<kScores1, kQueries + kSteps + kAt, kKeys>();
      score_keys<kTiles, kAt + 1>(keys, scores);
    } else {
      tiles_.template store<kScores0>(scores, kPageTokens * 4);
      if constexpr (kTiles == 2) tiles_.template store<kScores1>(scores + kTileScores, kPageTokens * 4);
    }
  }

  // Scores become weights. keys: how many each row sees, in ascending order.
  void weigh_tile(float* scores, const int (&keys)[kTileRows], int pages, float* maxima, float* sums) const {
    const int whole = keys[0] / kPageTokens;  // pages that all rows see all of
    Vectors vectors;
#pragma GCC unroll 16
    for (F32s& vector : vectors) vector = set(-std::numeric_limits<float>::infinity());
    for (int page = 0; page < whole; ++page) find_maxima<false>(scores, page, keys, vectors);
    for (int page = whole; page < pages; ++page) find_maxima<true>(scores, page, keys, vectors);
    store(maxima, fold_lanes(vectors, max_of));
#pragma GCC unroll 16
    for (F32s& vector : vectors) vector = set(0.0f);
    for (int page = 0; page < whole; ++page) weigh<false>(scores, page, keys, maxima, vectors);
    for (int page = whole; page < pages; ++page) weigh<true>(scores, page, keys, maxima, vectors);
    store(sums, fold_lanes(vectors, add));
  }

  // Of 16 keys from the i-th half of a page on, those that a row sees.
  REDOUBT_INLINE static __mmask16 seen(int keys, int page, int i) {
    const int count = keys - page * kPageTokens - i * kLanes;
    return count >= kLanes ? __mmask16(0xffff) : count > 0 ? first(count) : __mmask16(0);
  }
  // Over int8 pages the scales of a page's keys, or values.
  REDOUBT_INLINE static F32s scale_of(const float* scales, int page, int i) {
    return kInt8 ? load(scales + page * kPageTokens + i * kLanes) : set(1.0f);
  }

  template <bool kMasked>
  REDOUBT_INLINE void find_maxima(const float* scores, int page, const int (&keys)[kTileRows],
                                  Vectors& maxima) const {
    scores += page * kPageScores;
    const F32s scales[] = {scale_of(scratch_.key_scales, page, 0), scale_of(scratch_.key_scales, page, 1)};
#pragma GCC unroll 32
    for (int i = 0; i < 2 * kTileRows; ++i) {
      F32s& most = maxima[i / 2];
      F32s score = load(scores + i * kLanes);
      if constexpr (kInt8) score = mul(score, scales[i % 2]);
      most = kMasked ? _mm512_mask_max_ps(most, seen(keys[i / 2], page, i % 2), score, most)
                     : max_of(score, most);
    }
  }

  // A page's weights: 0 for keys that a row doesn't see. They are added to `sums` before they are scaled and
  // rounded. This goes in steps, as the processor does not look far enough ahead to overlap the work on one
  // vector with that on another.
  template <bool kMasked>
  REDOUBT_INLINE void weigh(float* scores, int page, const int (&keys)[kTileRows], const float* maxima,
                            Vectors& sums) const {
    scores += page * kPageScores;
    auto* const rounded = reinterpret_cast<uint16_t*>(scores);
    const F32s key_scales[] = {scale_of(scratch_.key_scales, page, 0),
                               scale_of(scratch_.key_scales, page, 1)};
    const F32s value_scales[] = {scale_of(scratch_.value_scales, page, 0),
                                 scale_of(scratch_.value_scales, page, 1)};
#pragma GCC unroll 16
    for (int row = 0; row < kTileRows; row += kTogether / 2) {
      F32s weights[kTogether];
      const auto each = [&](const auto& step) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int i = 0; i < kTogether; ++i) step(weights[i], row + i / 2, i % 2);
      };
      each([&](F32s& weight, int r, int i) __attribute__((always_inline)) {
        const F32s score = load(scores + r * kPageTokens + i * kLanes);
        weight = sub(kInt8 ? mul(score, key_scales[i]) : score, set(maxima[r]));
      });
      each([&](F32s& weight, int r, int i) __attribute__((always_inline)) {
        weight = exp2_to_bf16(weight);
        if constexpr (kMasked) weight = _mm512_maskz_mov_ps(seen(keys[r], page, i), weight);
        sums[r] = add(sums[r], weight);
      });
      if constexpr (kInt8) {
        each([&](F32s& weight, int r, int i) __attribute__((always_inline)) {
          weight = kMasked ? _mm512_maskz_mul_ps(seen(keys[r], page, i), weight, value_scales[i])
                           : mul(weight, value_scales[i]);
        });
      }
#pragma GCC unroll 4
      for (int i = 0; i < kTogether; i += 2) {
        _mm512_store_si512(rounded + (row + i / 2) * kPageTokens, round_to_bf16(weights[i], weights[i + 1]));
      }
    }
  }

  // 32 columns of the outputs of a tile of rows, or two.
  template <int kTiles>
  void add_values(int pages, int column) {
    tiles_.template zero<kOutputs00>();
    tiles_.template zero<kOutputs01>();
    if constexpr (kTiles == 2) {
      tiles_.template zero<kOutputs10>();
      tiles_.template zero<kOutputs11>();
    }
    const float* weights = scratch_.scores;
    const uint16_t* values = scratch_.values + column * 2;
    for (int page = 0; page < pages; ++page, weights += kPageScores, values += kPageTokens * kHeadDim) {
      tiles_.template load<kWeights0>(weights, kTileRowBytes);
      tiles_.template load_streamed<kValues0>(values, kHeadDim * 4);
      tiles_.template dot_product_bf16<kOutputs00, kWeights0, kValues0>();
      tiles_.template load_streamed<kValues1>(values + kStep, kHeadDim * 4);
      tiles_.template dot_product_bf16<kOutputs01, kWeights0, kValues1>();
      if constexpr (kTiles == 2) {
        tiles_.template load<kWeights1>(weights + kTileScores, kTileRowBytes);
        tiles_.template dot_product_bf16<kOutputs10, kWeights1, kValues0>();
        tiles_.template dot_product_bf16<kOutputs11, kWeights1, kValues1>();
      }
    }
    float* outputs = scratch_.outputs + column;
    tiles_.template store<kOutputs00>(outputs, kHeadDim * 4);
    tiles_.template store<kOutputs01>(outputs + kLanes, kHeadDim * 4);
    if constexpr (kTiles == 2) {
      outputs += kTileRows * kHeadDim;
      tiles_.template store<kOutputs10>(outputs, kHeadDim * 4);
      tiles_.template store<kOutputs11>(outputs + kLanes, kHeadDim * 4);
    }
  }

  // A row of outputs as the caller wants it, times `factor`.
  REDOUBT_INLINE static void finish_outputs(const float* outputs, float factor, float* to) {
    const F32s factors = set(factor);
    for (int d = 0; d < kHeadDim; d += 2 * kLanes) {
      F32s low = load(outputs + d), high = load(outputs + d + kLanes);
      if constexpr (kInt8) {
        low = mul(low, set(kCodeScale));
        high = mul(high, set(kCodeScale));
      } else {
        restore_columns(low, high);
      }
      store(to + d, mul(low, factors));
      store(to + d + kLanes, mul(high, factors));
    }
  }

  Tiles tiles_;
  const AttentionTask& task_;
  const Scratch scratch_;
  const int64_t rows_;
};

template <typename Tiles, int kSteps, typename Run>
void with_attention(const AttentionTask& task, void* memory, const Run& run) {
  if (task.kv.type == KvType::kInt8) return run(Attention<Tiles, kSteps, true>(task, memory));
  run(Attention<Tiles, kSteps, false>(task, memory));
}

// Calls run(an Attention for the task).
template <typename Tiles, typename Run>
void with_attention(const AttentionTask& task, void* memory, const Run& run) {
  switch (task.kv.head_dim / kStep) {
    case 1:
      return with_attention<Tiles, 1>(task, memory, run);
    case 2:
      return with_attention<Tiles, 2>(task, memory, run);
    case 3:
      return with_attention<Tiles, 3>(task, memory, run);
    default:
      return with_attention<Tiles, 4>(task, memory, run);
  }
}

template <typename Tiles>
void attention(const AttentionTask& task, void* memory) {
  with_attention<Tiles>(task, memory, [](auto&& attention) { attention.run(); });
}

template <typename Tiles>
void attention_partition(const AttentionTask& task, int p, float* states, void* memory) {
  with_attention<Tiles>(task, memory, [&](auto&& attention) { attention.run_partition(p, states); });
}

size_t attention_scratch_bytes(const AttentionTask& task) { return Scratch::bytes(task.kv.head_dim); }

template <typename Tiles>
void fill(KernelTable& table) {
  table.attention_bf16 = attention<Tiles>;
  table.attention_bf16_partition = attention_partition<Tiles>;
  table.attention_bf16_scratch_bytes = attention_scratch_bytes;
}
