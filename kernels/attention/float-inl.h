// Paged attention of one kv head's query group, written once for all vector tiers; attention/scalar.cc
// defines the result, and per (query token, head) and output the operations here are the same in the same
// order. Included inside the tier's namespace and target region, after its vector_<tier>-inl.h and
// simd/exp2-inl.h.
//
// Rows are (query token, head) pairs, token by token. A tile of up to kMaxTileRows rows takes one partition
// of keys at a time in two products whose accumulators stay in registers: scores = rows x keys (a vector
// holds keys, head_dim is summed over), output = rows x head_dim (a vector holds outputs, keys are summed
// over). Between them is one softmax per row. Each loaded (and, for bf16, widened) vector of keys or values
// serves all rows of the tile. Scores of keys that a row doesn't see are computed where another row or the
// same page needs it, perhaps from garbage, but never read.

// Scores of a row are this far apart: not a power of two, so that rows do not fall in the same cache sets.
inline constexpr int kScoreStride = kPartitionTokens + 16;
inline constexpr int kPartitionPages = kPartitionTokens / kPageTokens;
inline constexpr int kPageVectors = kPageTokens / kLanes;
inline constexpr int kMaxVectors = 8;  // of keys or outputs at once
// Tiles that work on a partition one after another while it is in the second-level cache.
inline constexpr int kBlockTiles = 8;
inline constexpr int kBlockRows = kBlockTiles * kMaxTileRows;

// One tile of rows and one partition. Rows are in the order of their tokens, so both ends of `seen` ascend.
struct Tile {
  // [head_dim][rows], times scale * log2(e); over pages of integers fixed point, pairs of int16
  // [head_dim / 2][rows].
  const float* queries;
  float* scores;  // [rows][kScoreStride]
  int head_dim;
  size_t values_offset;  // bytes, in a block
  // Of this partition, then of what comes next. Those before the first seen key are not read.
  const std::byte* blocks[2 * kPartitionPages];
  KeyRange seen[kMaxTileRows];
  float* outputs[kMaxTileRows];  // unnormalized
  float maxima[kMaxTileRows];
  float sums[kMaxTileRows];
  bool modifies;  // scores, and then for each row:
  ScoreModifier modifiers[kMaxTileRows];
  int distances[kMaxTileRows];  // from the query's position to the partition's first key's
  // Over pages of integers.
  const float* query_scales;  // [rows]
  float* value_scales;        // [kPartitionTokens]
};

// The most vectors, a power of two, whose accumulators fit the registers.
constexpr int most_vectors(int rows) {
  int vectors = kMaxVectors;
  while (vectors * rows > kAccumulators) vectors /= 2;
  return vectors;
}

// sums[r][v] += factors[r * stride] * x[v]
template <int kRows, int kVectors>
REDOUBT_INLINE void add_products(const float* factors, int stride, const F32s (&x)[kVectors],
                                 F32s (&sums)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const F32s factor = set(factors[r * stride]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[r][v] = fma(factor, x[v], sums[r][v]);
  }
}

// Scores of vectors first .. first + kVectors of the partition's keys.
template <KvType kType, int kRows, int kVectors>
REDOUBT_INLINE void score_vectors(const Tile& tile, int first) {
  constexpr int kPages = (kVectors + kPageVectors - 1) / kPageVectors;
  constexpr int kStep = kType == KvType::kFp32 ? 1 : 2;  // inputs of head_dim in one row of words of a block
  const float* keys[kPages];
  const std::byte* ahead[kPages];
  for (int p = 0; p < kPages; ++p) {
    const int page = first / kPageVectors + p;
    keys[p] = reinterpret_cast<const float*>(tile.blocks[page]) + first % kPageVectors * kLanes;
    ahead[p] = tile.blocks[page + kPages];
  }
  F32s scores[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) scores[r][v] = set(0.0f);
  }
  const float* query = tile.queries;
  for (int d = 0; d < tile.head_dim; d += kStep) {
    F32s key[kVectors];
    if constexpr (kType == KvType::kFp32) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) key[v] = load(keys[v / kPageVectors] + v % kPageVectors * kLanes);
      add_products<kRows, kVectors>(query, 1, key, scores);
    } else {
      Bits pairs[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        pairs[v] = load_pairs(keys[v / kPageVectors] + v % kPageVectors * kLanes);
        key[v] = even_of(pairs[v]);
      }
      add_products<kRows, kVectors>(query, 1, key, scores);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) key[v] = odd_of(pairs[v]);
      add_products<kRows, kVectors>(query + kRows, 1, key, scores);
    }
    query += kStep * kRows;
#pragma GCC unroll 4
    for (int p = 0; p < kPages; ++p) {
      // Prefetches two lines of a row of the next page's keys into the first-level cache, and as much of this
      // page's values into the second.
      const auto* values = reinterpret_cast<const std::byte*>(keys[p]) + tile.values_offset;
#pragma GCC unroll 2
      for (int line = 0; line < 2; ++line) {
        _mm_prefetch(ahead[p] + line * 64, _MM_HINT_T0);
        _mm_prefetch(values + line * 64, _MM_HINT_T1);
      }
      keys[p] += kPageTokens;
      ahead[p] += 128;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      store(tile.scores + r * kScoreStride + (first + v) * kLanes, scores[r][v]);
    }
  }
}

// Scores of vectors first .. end, as many at a time as fit, then fewer.
template <KvType kType, int kRows, int kVectors = most_vectors(kRows)>
REDOUBT_INLINE void score_all(const Tile& tile, int first, int end) {
  for (; first + kVectors <= end; first += kVectors) score_vectors<kType, kRows, kVectors>(tile, first);
  if constexpr (kVectors > 2 || kPageVectors < 2) {
    if (first < end) score_all<kType, kRows, kVectors / 2>(tile, first, end);
  }
}

// One row of values. bf16 values come in pairs of vectors, of even and of odd columns, so that widening one
// takes one operation; load_outputs and store_outputs restore the order.
template <KvType kType, int kVectors, typename Element>
REDOUBT_INLINE void load_values(const Element* values, F32s (&x)[kVectors]) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    if constexpr (kType == KvType::kFp32) {
      x[v] = load(values + v * kLanes);
    } else if constexpr (kVectors == 1) {
      x[v] = load_bf16(values);
    } else {
      const Bits pairs = load_pairs(values + v / 2 * 2 * kLanes);
      x[v] = v % 2 == 0 ? even_of(pairs) : odd_of(pairs);
    }
  }
}
template <KvType kType, int kVectors>
REDOUBT_INLINE void load_outputs(const float* outputs, F32s (&x)[kVectors]) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) x[v] = load(outputs + v * kLanes);
  if constexpr (kType == KvType::kBf16 && kVectors > 1) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v += 2) deinterleave(x[v], x[v + 1]);
  }
}
template <KvType kType, int kVectors>
REDOUBT_INLINE void store_outputs(float* outputs, F32s (&x)[kVectors]) {
  if constexpr (kType == KvType::kBf16 && kVectors > 1) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v += 2) interleave(x[v], x[v + 1]);
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) store(outputs + v * kLanes, x[v]);
}

// outputs[r][column ...] (+)= scores[r][t] * values[t][column ...] for t in begin .. end. first_row: as tile
// row 0.
template <KvType kType, int kRows, int kVectors>
REDOUBT_INLINE void value_vectors(const Tile& tile, int first_row, int begin, int end, int column,
                                  bool accumulate) {
  using Element = std::conditional_t<kType == KvType::kFp32, float, uint16_t>;
  constexpr int kLines = (kVectors * kLanes * sizeof(Element) + 63) / 64;
  F32s outputs[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    if (accumulate) {
      load_outputs<kType>(tile.outputs[first_row + r] + column, outputs[r]);
    } else {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) outputs[r][v] = set(0.0f);
    }
  }
  const float* scores = tile.scores + first_row * kScoreStride;
  while (begin < end) {
    const int slot = begin % kPageTokens, page = begin / kPageTokens;
    const int stop = end < begin - slot + kPageTokens ? end : begin - slot + kPageTokens;
    const int at = slot * tile.head_dim + column;
    const auto* values = reinterpret_cast<const Element*>(tile.blocks[page] + tile.values_offset) + at;
    // Prefetches as much of the next keys, so that memory is read at the same rate throughout.
    const auto* ahead = reinterpret_cast<const Element*>(tile.blocks[kPartitionPages + page]) + at;
    for (; begin < stop; ++begin, values += tile.head_dim, ahead += tile.head_dim) {
#pragma GCC unroll 8
      for (int line = 0; line < kLines; ++line) {
        _mm_prefetch(reinterpret_cast<const std::byte*>(ahead) + line * 64, _MM_HINT_T1);
      }
      F32s value[kVectors];
      load_values<kType>(values, value);
      add_products<kRows, kVectors>(scores + begin, kScoreStride, value, outputs);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) store_outputs<kType>(tile.outputs[first_row + r] + column, outputs[r]);
}

// All columns, as many vectors at a time as fit, then fewer.
template <KvType kType, int kRows, int kVectors = most_vectors(kRows)>
REDOUBT_INLINE void value_all(const Tile& tile, int first_row, int begin, int end, int column,
                              bool accumulate) {
  for (; column + kVectors * kLanes <= tile.head_dim; column += kVectors * kLanes) {
    value_vectors<kType, kRows, kVectors>(tile, first_row, begin, end, column, accumulate);
  }
  if constexpr (kVectors > 1) {
    if (column < tile.head_dim) {
      value_all<kType, kRows, kVectors / 2>(tile, first_row, begin, end, column, accumulate);
    }
  }
}

// Keys skip .. n of a vector of scores; the other lanes are `fill`.
REDOUBT_INLINE F32s load_seen(const float* scores, int skip, int n, F32s fill) {
  const F32s x = n < kLanes ? load_first(scores, n, fill) : load(scores);
  return skip > 0 ? replace_first(x, skip, fill) : x;
}
// The same lanes of x; the others are 0.
REDOUBT_INLINE F32s keep_seen(F32s x, int skip, int n) {
  if (n < kLanes) x = keep_first(x, n);
  return skip > 0 ? replace_first(x, skip, set(0.0f)) : x;
}

float max_score(const float* scores, KeyRange seen) {
  const F32s lowest = set(-std::numeric_limits<float>::infinity());
  F32s maxima[2] = {lowest, lowest};
  int t = seen.begin / kLanes * kLanes;
  if (t < seen.begin && !seen.empty()) {
    maxima[0] = load_seen(scores + t, seen.begin - t, seen.end - t, lowest);
    // A NaN is not a maximum.
    maxima[0] = max_of(maxima[0], lowest);
    t += kLanes;
  }
  for (; t + 2 * kLanes <= seen.end; t += 2 * kLanes) {
    maxima[0] = max_of(load(scores + t), maxima[0]);
    maxima[1] = max_of(load(scores + t + kLanes), maxima[1]);
  }
  for (; t + kLanes <= seen.end; t += kLanes) maxima[0] = max_of(load(scores + t), maxima[0]);
  if (t < seen.end) maxima[1] = max_of(load_first(scores + t, seen.end - t, lowest), maxima[1]);
  return max_of_lanes(max_of(maxima[0], maxima[1]));
}

// Calls weigh(t, skip, n, j) for vectors of keys skip .. n <= kLanes from t on, all that are seen; j: the
// vector of the lanes of a sum. Only the first vectors may have a `skip`, and only the last ones fewer keys.
template <typename Weigh>
REDOUBT_INLINE void for_vectors(KeyRange seen, const Weigh& weigh) {
  constexpr int kVectors = kSoftmaxLanes / kLanes;
  int t = seen.begin / kSoftmaxLanes * kSoftmaxLanes;
  const auto keys_left = [&] { return seen.end - t < kLanes ? seen.end - t : kLanes; };
  if (t < seen.begin) {
    for (int j = 0; j < kVectors && t < seen.end; ++j, t += kLanes) {
      const int skip = seen.begin - t;
      weigh(t, skip < 0 ? 0 : skip > kLanes ? kLanes : skip, keys_left(), j);
    }
  }
  for (; t + kSoftmaxLanes <= seen.end; t += kSoftmaxLanes) {
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) weigh(t + j * kLanes, 0, kLanes, j);
  }
  for (int j = 0; t < seen.end; t += kLanes, ++j) weigh(t, 0, keys_left(), j);
}

// Scores, which are yet to be multiplied with `scale`, as they go into the maximum. distance: from the
// query's position to key 0's.
void modify_row(float* scores, KeyRange seen, const ScoreModifier& modifier, int distance, float scale) {
  for (int t = seen.begin / kLanes * kLanes; t < seen.end; t += kLanes) {
    store(scores + t, modified(mul(load(scores + t), set(scale)), modifier, distance + t));
  }
}

// Scores become weights 2^(score - maximum) of the keys that the row sees.
void softmax_row(float* scores, KeyRange seen, float* maximum, float* sum) {
  *maximum = max_score(scores, seen);
  const F32s max = set(*maximum), lowest = set(-std::numeric_limits<float>::infinity());
  F32s sums[kSoftmaxLanes / kLanes];
  for (F32s& lanes : sums) lanes = set(0.0f);
  for_vectors(seen, [&](int t, int skip, int n, int j) __attribute__((always_inline)) {
    const F32s weight = exp2_nonpositive(sub(load_seen(scores + t, skip, n, lowest), max));
    store(scores + t, weight);
    // If the maximum is -infinity the difference is NaN, so lanes that are not seen must not be counted.
    sums[j] = add(sums[j], keep_seen(weight, skip, n));
  });
  *sum = sum_of_lanes(sums);
}

// Outputs of row r from keys begin .. end alone.
template <KvType kType>
void value_row(const Tile& tile, int r, int begin, int end, bool accumulate) {
  value_all<kType, 1>(tile, r, begin, end, 0, accumulate);
}

template <KvType kType, int kRows>
void partition_tile(Tile& tile) {
  const int first_page = tile.seen[0].begin / kPageTokens;
  const int pages = (tile.seen[kRows - 1].end + kPageTokens - 1) / kPageTokens;
  score_all<kType, kRows>(tile, first_page * kPageVectors, pages * kPageVectors);
  for (int r = 0; r < kRows; ++r) {
    float* const scores = tile.scores + r * kScoreStride;
    if (tile.modifies) modify_row(scores, tile.seen[r], tile.modifiers[r], tile.distances[r], 1.0f);
    softmax_row(scores, tile.seen[r], &tile.maxima[r], &tile.sums[r]);
  }
  // Each row's keys in ascending order: those before what all rows see, if any, that, and those after it.
  const KeyRange common{tile.seen[kRows - 1].begin, tile.seen[0].end};
  const bool has_heads = tile.seen[0].begin < common.begin, is_apart = common.end < common.begin;
  if (has_heads) {
    for (int r = 0; r < kRows; ++r) {
      value_row<kType>(tile, r, tile.seen[r].begin, is_apart ? tile.seen[r].end : common.begin, false);
    }
    if (is_apart) return;
  }
  value_all<kType, kRows>(tile, 0, common.begin, common.end, 0, has_heads);
  for (int r = 0; r < kRows; ++r) {
    if (tile.seen[r].end > common.end) value_row<kType>(tile, r, common.end, tile.seen[r].end, true);
  }
}
