// A tile of rows and one partition of pages of integers; attention/fixed_scalar.cc defines the result.
// Included inside the tier's namespace and target region, after attention/float-inl.h, which has the tile and
// the loops over rows and keys. Products are of pairs of int16, exact in int32: of queries in fixed point,
// and of weights in fixed point, with keys and values that are int16 or, widened as they are loaded, int8.

// Bytes of a pair of keys or values.
template <KvType kType>
inline constexpr int kPairBytes = kType == KvType::kInt8 ? 2 : 4;

template <KvType kType>
REDOUBT_INLINE Bits load_code_pairs(const std::byte* codes) {
  return kType == KvType::kInt8 ? load_int8_pairs(codes) : load_pairs(codes);
}

template <int kRows, int kVectors>
REDOUBT_INLINE void add_dots(const int32_t* pairs, int stride, const Bits (&x)[kVectors],
                             Bits (&sums)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const Bits pair = set_pair(pairs[r * stride]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[r][v] = add_dot(sums[r][v], x[v], pair);
  }
}

template <int kRows, int kVectors>
REDOUBT_INLINE void clear(Bits (&sums)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[r][v] = zero_bits();
  }
}

// Scores, not yet times the row's query scale, of vectors first .. first + kVectors of the partition's keys.
template <KvType kType, int kRows, int kVectors>
REDOUBT_INLINE void fixed_score_vectors(const Tile& tile, int first) {
  constexpr int kPages = (kVectors + kPageVectors - 1) / kPageVectors;
  constexpr int kRowBytes = kPairBytes<kType> * kPageTokens;
  constexpr int kOwnBytes = kPairBytes<kType> * kLanes * (kVectors < kPageVectors ? kVectors : kPageVectors);
  const std::byte* keys[kPages];
  const std::byte* ahead[kPages];
  const std::byte* values[kPages];
  for (int p = 0; p < kPages; ++p) {
    const int page = first / kPageVectors + p;
    const int own = first % kPageVectors * (kPairBytes<kType> * kLanes);
    keys[p] = tile.blocks[page] + own;
    ahead[p] = tile.blocks[page + kPages] + own;
    values[p] = tile.blocks[page] + tile.values_offset + own;
  }
  Bits dots[kRows][kVectors];
  clear(dots);
  const auto* query = reinterpret_cast<const int32_t*>(tile.queries);
  for (int d = 0; d < tile.head_dim; d += 2, query += kRows) {
    Bits key[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      key[v] =
          load_code_pairs<kType>(keys[v / kPageVectors] + v % kPageVectors * (kPairBytes<kType> * kLanes));
    }
    add_dots(query, 1, key, dots);
#pragma GCC unroll 4
    for (int p = 0; p < kPages; ++p) {
      // Prefetches as much of the next page's keys, and of this page's values into the second-level cache.
#pragma GCC unroll 2
      for (int line = 0; line < kOwnBytes; line += 64) {
        _mm_prefetch(ahead[p] + line, _MM_HINT_T0);
        _mm_prefetch(values[p] + line, _MM_HINT_T1);
      }
      keys[p] += kRowBytes;
      ahead[p] += kRowBytes;
      values[p] += kRowBytes;
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const int t = (first + v) * kLanes, slot = t % kPageTokens;
    const std::byte* block = tile.blocks[t / kPageTokens];
    const auto* scales = reinterpret_cast<const uint16_t*>(block + scales_offset_bytes(kType, tile.head_dim));
    const F32s scale = load_bf16(scales + slot);
    store(tile.value_scales + t, load_bf16(scales + kPageTokens + slot));
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      store(tile.scores + r * kScoreStride + t, mul(to_float(dots[r][v]), scale));
    }
  }
}

template <KvType kType, int kRows, int kVectors = most_vectors(kRows)>
REDOUBT_INLINE void fixed_score_all(const Tile& tile, int first, int end) {
  for (; first + kVectors <= end; first += kVectors) fixed_score_vectors<kType, kRows, kVectors>(tile, first);
  if constexpr (kVectors > 2 || kPageVectors < 2) {
    if (first < end) fixed_score_all<kType, kRows, kVectors / 2>(tile, first, end);
  }
}

// What is collected while a row's scores become weights: the lanes of the weights' sum; the largest weight
// times its value's scale; and for int16 pages the lanes of the sum of those products.
struct FixedWeights {
  F32s sums[kSoftmaxLanes / kLanes];
  F32s scaled_sums[kSoftmaxLanes / kLanes];
  Bits largest;
};

// Scores become weights times their value's scale.
template <KvType kType>
REDOUBT_INLINE void weigh_fixed_row(float* scores, const float* value_scales, float maximum,
                                    float query_scale, KeyRange seen, FixedWeights& weights) {
  const F32s max = set(maximum), scale = set(query_scale);
  constexpr int kVectors = kSoftmaxLanes / kLanes;
  F32s sums[kVectors], scaled_sums[kVectors];  // here, not in `weights`, so that they stay in registers
  for (int j = 0; j < kVectors; ++j) sums[j] = scaled_sums[j] = set(0.0f);
  Bits largest = zero_bits();
  for_vectors(seen, [&](int t, int skip, int n, int j) __attribute__((always_inline)) {
    const F32s score = load_seen(scores + t, skip, n, max);
    F32s weight = exp2_nonpositive<kExp2ToFixed>(mul(sub(score, max), scale), kExp2SmallestScaled);
    F32s scaled = mul(weight, load(value_scales + t));
    weight = keep_seen(weight, skip, n), scaled = keep_seen(scaled, skip, n);
    sums[j] = add(sums[j], weight);
    if constexpr (kType == KvType::kInt16) scaled_sums[j] = add(scaled_sums[j], scaled);
    largest = max_bits(largest, bits_of(scaled));
    store(scores + t, scaled);
  });
  for (int j = 0; j < kVectors; ++j) weights.sums[j] = sums[j], weights.scaled_sums[j] = scaled_sums[j];
  weights.largest = largest;
}

// Scaled weights become fixed point, as int16, in the row's place; 0 for keys of `all` that it doesn't see.
REDOUBT_INLINE void fix_row(float* scaled, FixedPoint fixed, KeyRange seen, KeyRange all) {
  auto* codes = reinterpret_cast<int16_t*>(scaled);
  // The weights before the first seen key's lanes are not set, and those in them are 0.
  int t = seen.begin / kSoftmaxLanes * kSoftmaxLanes;
  if (t > all.begin) std::memset(codes + all.begin, 0, size_t(t - all.begin) * sizeof(int16_t));
  if (fixed.inverse != 0.0f) {
    const F32s inverse = set(fixed.inverse);
    for (; t < seen.end; t += kLanes) store_integers(codes + t, mul(load(scaled + t), inverse));
  }
  if (t < all.end) std::memset(codes + t, 0, size_t(all.end - t) * sizeof(int16_t));
}

// Scores become weights times their value's scale, in fixed point as int16, in their rows' places; 0 for keys
// of `all` that a row doesn't see. Writes the rows' maxima and sums, and the weights' scales. Each pass is
// done for all rows before the next one, because a row's passes depend on one another.
template <KvType kType>
void fixed_softmax(Tile& tile, int rows, KeyRange all, float* scales) {
  float maxima[kMaxTileRows], score_scales[kMaxTileRows];
  FixedWeights weights[kMaxTileRows];
  FixedPoint fixed[kMaxTileRows];
  for (int r = 0; r < rows; ++r) {
    float* const scores = tile.scores + r * kScoreStride;
    score_scales[r] = tile.query_scales[r];
    if (tile.modifies && tile.modifiers[r].modifies()) {
      modify_row(scores, tile.seen[r], tile.modifiers[r], tile.distances[r], score_scales[r]);
      score_scales[r] = 1.0f;
    }
    maxima[r] = max_score(scores, tile.seen[r]);
  }
  for (int r = 0; r < rows; ++r) {
    weigh_fixed_row<kType>(tile.scores + r * kScoreStride, tile.value_scales, maxima[r], score_scales[r],
                           tile.seen[r], weights[r]);
  }
  for (int r = 0; r < rows; ++r) {
    tile.maxima[r] = maxima[r] * score_scales[r];
    tile.sums[r] = sum_of_lanes(weights[r].sums);
    fixed[r] = factors_fixed_point(kType, max_bits_of_lanes(weights[r].largest),
                                   sum_of_lanes(weights[r].scaled_sums), kPartitionTokens);
    scales[r] = fixed[r].scale;
  }
  for (int r = 0; r < rows; ++r) fix_row(tile.scores + r * kScoreStride, fixed[r], tile.seen[r], all);
}

// outputs[r][column ...] = weights[r][t] * values[t][column ...] for t in all keys of pages first .. end.
template <KvType kType, int kRows, int kVectors>
REDOUBT_INLINE void fixed_value_vectors(const Tile& tile, const float (&scales)[kRows], int first, int end,
                                        int column) {
  constexpr int kVectorBytes = kPairBytes<kType> * kLanes;
  constexpr int kLines = (kVectors * kVectorBytes + 63) / 64;
  const int64_t row_bytes = int64_t(kPairBytes<kType>) * tile.head_dim;
  Bits sums[kRows][kVectors];
  clear(sums);
  const auto* weights = reinterpret_cast<const int32_t*>(tile.scores) + first * (kPageTokens / 2);
  for (int page = first; page < end; ++page) {
    const int at = column * kPairBytes<kType>;
    const std::byte* values = tile.blocks[page] + tile.values_offset + at;
    // Prefetches as much of the next keys, so that memory is read at the same rate throughout.
    const std::byte* ahead = tile.blocks[kPartitionPages + page] + at;
    for (int pair = 0; pair < kPageTokens / 2; ++pair, ++weights) {
#pragma GCC unroll 8
      for (int line = 0; line < kLines; ++line) _mm_prefetch(ahead + line * 64, _MM_HINT_T1);
      Bits value[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) value[v] = load_code_pairs<kType>(values + v * kVectorBytes);
      add_dots(weights, kScoreStride, value, sums);
      values += row_bytes;
      ahead += row_bytes;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const F32s scale = set(scales[r]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      store(tile.outputs[r] + column + v * kLanes, mul(to_float(sums[r][v]), scale));
    }
  }
}

template <KvType kType, int kRows, int kVectors = most_vectors(kRows)>
REDOUBT_INLINE void fixed_value_all(const Tile& tile, const float (&scales)[kRows], int first, int end,
                                    int column) {
  for (; column + kVectors * kLanes <= tile.head_dim; column += kVectors * kLanes) {
    fixed_value_vectors<kType, kRows, kVectors>(tile, scales, first, end, column);
  }
  if constexpr (kVectors > 1) {
    if (column < tile.head_dim) fixed_value_all<kType, kRows, kVectors / 2>(tile, scales, first, end, column);
  }
}

template <KvType kType, int kRows>
void fixed_partition_tile(Tile& tile) {
  const int first = tile.seen[0].begin / kPageTokens;
  const int end = (tile.seen[kRows - 1].end + kPageTokens - 1) / kPageTokens;
  fixed_score_all<kType, kRows>(tile, first * kPageVectors, end * kPageVectors);
  float scales[kRows];
  fixed_softmax<kType>(tile, kRows, {first * kPageTokens, end * kPageTokens}, scales);
  fixed_value_all<kType, kRows>(tile, scales, first, end, 0);
}

// One row's query in fixed point: code d to packed[d / 2 * stride * 2 + d % 2]. Returns its scale.
float pack_fixed_query(KvType pages, const float* query, float scale_log2e, int head_dim, int64_t stride,
                       int16_t* packed) {
  const F32s factor = set(scale_log2e);
  constexpr int kVectors = kSoftmaxLanes / kLanes;
  Bits largest = zero_bits();
  F32s sums[kVectors];
  for (F32s& lanes : sums) lanes = set(0.0f);
  for (int d = 0; d < head_dim; d += kLanes) {
    const Bits magnitudes = magnitude_bits(mul(load(query + d), factor));
    largest = max_bits(largest, magnitudes);
    sums[d / kLanes % kVectors] = add(sums[d / kLanes % kVectors], float_of_bits(magnitudes));
  }
  const FixedPoint fixed =
      factors_fixed_point(pages, max_bits_of_lanes(largest), sum_of_lanes(sums), head_dim);
  for (int d = 0; d < head_dim; d += kLanes) {
    alignas(32) int16_t codes[kLanes];
    const F32s scaled = mul(mul(load(query + d), factor), set(fixed.inverse));
    store_integers(codes, fixed.inverse == 0.0f ? set(0.0f) : scaled);
    for (int i = 0; i < kLanes; i += 2) std::memcpy(packed + (d + i) * stride, codes + i, 4);
  }
  return fixed.scale;
}

template <KvType kType, int kRows>
void any_partition_tile(Tile& tile) {
  if constexpr (is_fixed_point(kType)) {
    fixed_partition_tile<kType, kRows>(tile);
  } else {
    partition_tile<kType, kRows>(tile);
  }
}

using PartitionTile = void (*)(Tile&);
template <KvType kType, size_t... kIndex>
PartitionTile partition_tile_of(int rows, std::index_sequence<kIndex...>) {
  static constexpr PartitionTile kByRows[] = {any_partition_tile<kType, int(kIndex) + 1>...};
  return kByRows[rows - 1];
}
PartitionTile partition_tile_of(KvType type, int rows) {
  constexpr auto kRows = std::make_index_sequence<kMaxTileRows>();
  switch (type) {
    case KvType::kFp32:
      return partition_tile_of<KvType::kFp32>(rows, kRows);
    case KvType::kBf16:
      return partition_tile_of<KvType::kBf16>(rows, kRows);
    case KvType::kInt16:
      return partition_tile_of<KvType::kInt16>(rows, kRows);
    case KvType::kInt8:
      return partition_tile_of<KvType::kInt8>(rows, kRows);
  }
  __builtin_unreachable();
}
