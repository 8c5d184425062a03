// Paged attention of prompts in AMX tiles; attention/bf16_scalar.cc defines the result.
//
// Rows are (query token, head) pairs, token by token, in tiles of 16. A partition's keys and values are
// brought once into the form that tiles take, then pairs of tiles of rows, which share what is loaded of keys
// and values, take their turns: scores = rows x keys, a softmax per row, outputs = weights x values. Scores
// of keys that a row doesn't see are computed, perhaps from garbage, but never counted; values that no row
// sees are zero.
//
// The three are apart, because an instruction on tiles slows down vectors for some time after it, and tiles
// that were idle for longer take some time to be fast again. Measured in docs/tuning.md.
//
// Included inside the namespace and target region of attention/bf16_amx.cc and of
// testing/attention_bf16_amx_emulated.cc; Tiles, below, are the processor's or emulated ones.

#include "simd/vector_avx512-inl.h"

#include "simd/exp2-inl.h"

#include "simd/tanh-inl.h"

#include "attention/modifier-inl.h"

#include "attention/rows-inl.h"

#include "attention/bf16_operands-inl.h"

#include "simd/fold_lanes-inl.h"

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

alignas(64) inline constexpr auto kOnes = [] {
  std::array<float, kPartitionTokens> ones{};
  ones.fill(1.0f);
  return ones;
}();

template <typename Tiles, int kSteps, bool kInt8>
class Attention {
 public:
  Attention(const AttentionTask& task, void* memory)
      : tiles_(tile_shapes()),
        task_(task),
        scratch_(memory, kHeadDim),
        rows_(int64_t(task.query_tokens) * task.group_heads),
        modifies_(modifies_scores(task)),
        key_scales_(modifies_ ? kOnes.data() : scratch_.key_scales) {}

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
        state[kStateMax] = scratch_.maxima[row - first];  // -infinity if it sees no key
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

  // What rows first .. end, or some of them, see.
  KeyRange seen_by_some(int64_t first, int64_t end, int p) const {
    return {seen_by(task_, first, p).begin, seen_by(task_, end - 1, p).end};
  }

  void attend_block(int64_t first, int64_t end) {
    pack_queries(task_, first, end, scratch_.queries);
    float maxima[kBlockRows], sums[kBlockRows];
    const int first_partition = first_partition_of(task_, first);
    const int end_partition = partitions_of(visible_to(task_, end - 1));
    const bool is_only = end_partition == first_partition + 1;
    for (int p = first_partition; p < end_partition; ++p) {
      attend_partition(p, first, end, [&](int64_t row, const float* outputs) {
        const int64_t at = row - first;
        float* const to = output_of(task_, row);
        const float max = scratch_.maxima[at], sum = scratch_.sums[at];
        if (is_only) {
          finish_outputs(outputs, normalizer(task_, row, max, sum), to);
        } else if (p == first_partition_of(task_, row)) {
          maxima[at] = max;
          sums[at] = sum;
          finish_outputs(outputs, 1.0f, to);
        } else if (!seen_by(task_, row, p).empty()) {
          alignas(64) float part[kHeadDim];
          finish_outputs(outputs, 1.0f, part);
          merge_row(&maxima[at], &sums[at], to, max, sum, part, kHeadDim);
        }
      });
    }
    if (is_only) return;
    for (int64_t row = first; row < end; ++row) {
      const int64_t at = row - first;
      scale_row(normalizer(task_, row, maxima[at], sums[at]), output_of(task_, row), kHeadDim);
    }
  }

  // Rows first .. end, a block's: their states go to maxima and sums; finish(row, its outputs) is called for
  // each.
  template <typename Finish>
  void attend_partition(int p, int64_t first, int64_t end, const Finish& finish) {
    const Partition partition = take_partition(task_, p, seen_by_some(first, end, p), scratch_);
    for (int64_t row = first; row < end; row += kPairRows) {
      const int64_t last = std::min(row + kPairRows, end);
      const PageRange pages(seen_by_some(row, last, p));
      if (last - row > kTileRows) {
        attend_tiles<2>(partition, p, pages, first, row, last);
      } else {
        attend_tiles<1>(partition, p, pages, first, row, last);
      }
      for (int64_t r = row; r < last; ++r) finish(r, scratch_.outputs + (r - row) * kHeadDim);
    }
  }

  template <int kTiles>
  void attend_tiles(const Partition& partition, int p, PageRange pages, int64_t first, int64_t row,
                    int64_t last) {
    const uint16_t* const queries = scratch_.queries + (row - first) * kHeadDim;
    if constexpr (kTiles * kSteps <= kTileRegisters - kQueries) {
      score<kTiles>(partition, pages, queries, scratch_.scores);
    } else {
      for (int tile = 0; tile < kTiles; ++tile)
        score<1>(partition, pages, queries + tile * kTileQueries, scratch_.scores + tile * kTileScores);
    }
    for (int tile = 0; tile < kTiles; ++tile) {
      const int64_t tile_row = row + tile * kTileRows, at = tile_row - first;
      float* const scores = scratch_.scores + tile * kTileScores;
      if (modifies_) modify_tile(scores, p, pages, tile_row, last);
      SeenRows seen;
      for (int r = 0; r < kTileRows; ++r) seen.take(r, seen_by(task_, std::min(tile_row + r, last - 1), p));
      weigh_tile(scores, seen, pages, scratch_.maxima + at, scratch_.sums + at);
    }
    for (int column = 0; column < kHeadDim; column += 2 * kLanes) add_values<kTiles>(pages, column);
  }

  // Scores of a tile of rows, or two, and all keys of the pages. The queries stay in their registers.
  template <int kTiles>
  void score(const Partition& partition, PageRange pages, const uint16_t* queries, float* scores) {
    load_queries<kTiles * kSteps>(queries);
    scores += pages.begin * kPageScores;
    for (int page = pages.begin; page < pages.end; ++page, scores += kPageScores) {
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

  // Scores of the rows from `row` to `last` as they go into the maximum; over int8 pages times their key's
  // scale.
  void modify_tile(float* scores, int p, PageRange pages, int64_t row, int64_t last) const {
    for (int r = 0; r < kTileRows && row + r < last; ++r) {
      const ScoreModifier modifier = modifier_of(task_, row + r);
      const int distance = distance_to(task_, row + r, p);
      for (int t = pages.begin * kPageTokens; t < pages.end * kPageTokens; t += kLanes) {
        float* const at = scores + t / kPageTokens * kPageScores + r * kPageTokens + t % kPageTokens;
        F32s score = load(at);
        if constexpr (kInt8) score = mul(score, load(scratch_.key_scales + t));
        store(at, modified(score, modifier, distance + t));
      }
    }
  }

  // The keys that each row of a tile sees. Both ends ascend.
  struct SeenRows {
    int begins[kTileRows];
    int ends[kTileRows];
    void take(int r, KeyRange seen) { begins[r] = seen.begin, ends[r] = seen.end; }
  };

  // Scores become weights.
  void weigh_tile(float* scores, const SeenRows& seen, PageRange pages, float* maxima, float* sums) const {
    // Pages that all rows see all of, which may be none.
    const int whole = std::min((seen.begins[kTileRows - 1] + kPageTokens - 1) / kPageTokens, pages.end);
    const int end_whole = std::max(whole, seen.ends[0] / kPageTokens);
    Vectors vectors;
#pragma GCC unroll 16
    for (F32s& vector : vectors) vector = set(-std::numeric_limits<float>::infinity());
    for (int page = pages.begin; page < whole; ++page) find_maxima<true>(scores, page, seen, vectors);
    for (int page = whole; page < end_whole; ++page) find_maxima<false>(scores, page, seen, vectors);
    for (int page = end_whole; page < pages.end; ++page) find_maxima<true>(scores, page, seen, vectors);
    store(maxima, fold_lanes(vectors, max_of));
#pragma GCC unroll 16
    for (F32s& vector : vectors) vector = set(0.0f);
    for (int page = pages.begin; page < whole; ++page) weigh<true>(scores, page, seen, maxima, vectors);
    for (int page = whole; page < end_whole; ++page) weigh<false>(scores, page, seen, maxima, vectors);
    for (int page = end_whole; page < pages.end; ++page) weigh<true>(scores, page, seen, maxima, vectors);
    store(sums, fold_lanes(vectors, add));
  }

  // Of 16 keys from the i-th half of a page on, those that a row sees.
  REDOUBT_INLINE static __mmask16 seen_lanes(const SeenRows& seen, int row, int page, int i) {
    const int first_key = page * kPageTokens + i * kLanes;
    return lanes_before(seen.ends[row] - first_key) & ~lanes_before(seen.begins[row] - first_key);
  }
  REDOUBT_INLINE static __mmask16 lanes_before(int count) {
    return count >= kLanes ? __mmask16(0xffff) : count > 0 ? first(count) : __mmask16(0);
  }
  // Over int8 pages the scales of a page's keys, or values.
  REDOUBT_INLINE static F32s scale_of(const float* scales, int page, int i) {
    return kInt8 ? load(scales + page * kPageTokens + i * kLanes) : set(1.0f);
  }

  template <bool kMasked>
  REDOUBT_INLINE void find_maxima(const float* scores, int page, const SeenRows& seen,
                                  Vectors& maxima) const {
    scores += page * kPageScores;
    const F32s scales[] = {scale_of(key_scales_, page, 0), scale_of(key_scales_, page, 1)};
#pragma GCC unroll 32
    for (int i = 0; i < 2 * kTileRows; ++i) {
      F32s& most = maxima[i / 2];
      F32s score = load(scores + i * kLanes);
      if constexpr (kInt8) score = mul(score, scales[i % 2]);
      most = kMasked ? _mm512_mask_max_ps(most, seen_lanes(seen, i / 2, page, i % 2), score, most)
                     : max_of(score, most);
    }
  }

  // A page's weights: 0 for keys that a row doesn't see. They are added to `sums` before they are scaled and
  // rounded. This goes in steps, as the processor does not look far enough ahead to overlap the work on one
  // vector with that on another.
  template <bool kMasked>
  REDOUBT_INLINE void weigh(float* scores, int page, const SeenRows& seen, const float* maxima,
                            Vectors& sums) const {
    scores += page * kPageScores;
    auto* const rounded = reinterpret_cast<uint16_t*>(scores);
    const F32s key_scales[] = {scale_of(key_scales_, page, 0), scale_of(key_scales_, page, 1)};
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
        if constexpr (kMasked) weight = _mm512_maskz_mov_ps(seen_lanes(seen, r, page, i), weight);
        sums[r] = add(sums[r], weight);
      });
      if constexpr (kInt8) {
        each([&](F32s& weight, int r, int i) __attribute__((always_inline)) {
          weight = kMasked ? _mm512_maskz_mul_ps(seen_lanes(seen, r, page, i), weight, value_scales[i])
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
  void add_values(PageRange pages, int column) {
    tiles_.template zero<kOutputs00>();
    tiles_.template zero<kOutputs01>();
    if constexpr (kTiles == 2) {
      tiles_.template zero<kOutputs10>();
      tiles_.template zero<kOutputs11>();
    }
    const float* weights = scratch_.scores + pages.begin * kPageScores;
    const uint16_t* values = scratch_.values + pages.begin * kPageTokens * kHeadDim + column * 2;
    for (int page = pages.begin; page < pages.end;
         ++page, weights += kPageScores, values += kPageTokens * kHeadDim) {
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
  const bool modifies_;
  const float* const key_scales_;  // what is yet to be multiplied with scores, over int8 pages
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
