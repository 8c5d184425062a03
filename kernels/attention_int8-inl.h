// A tile of rows and one partition of int8 pages; attention_int8_scalar.cc defines the result. Included
// inside the tier's namespace and target region, after attention-inl.h, which has the tile and how rows and
// keys are gone through. Products are of pairs of int16, exact in int32: of queries in fixed point, and of
// weights in fixed point, with keys and values widened as they are loaded.

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
template <int kRows, int kVectors>
REDOUBT_INLINE void int8_score_vectors(const Tile& tile, int first) {
  constexpr int kPages = (kVectors + kPageVectors - 1) / kPageVectors;
  const int8_t* keys[kPages];
  const std::byte* ahead[kPages];
  const std::byte* values[kPages];
  for (int p = 0; p < kPages; ++p) {
    const int page = first / kPageVectors + p;
    keys[p] = reinterpret_cast<const int8_t*>(tile.blocks[page]) + first % kPageVectors * (2 * kLanes);
    ahead[p] = tile.blocks[page + kPages];
    values[p] = tile.blocks[page] + tile.values_offset;
  }
  Bits dots[kRows][kVectors];
  clear(dots);
  const auto* query = reinterpret_cast<const int32_t*>(tile.queries);
  for (int d = 0; d < tile.head_dim; d += 2, query += kRows) {
    Bits key[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      key[v] = load_int8_pairs(keys[v / kPageVectors] + v % kPageVectors * (2 * kLanes));
    }
    add_dots(query, 1, key, dots);
#pragma GCC unroll 4
    for (int p = 0; p < kPages; ++p) {
      // The next page's row of keys, and as much of this page's values, which can wait in the second level.
      _mm_prefetch(ahead[p], _MM_HINT_T0);
      _mm_prefetch(values[p], _MM_HINT_T1);
      keys[p] += 2 * kPageTokens;
      ahead[p] += 64;
      values[p] += 64;
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const int t = (first + v) * kLanes, slot = t % kPageTokens;
    const std::byte* block = tile.blocks[t / kPageTokens];
    const auto* scales = reinterpret_cast<const uint16_t*>(block + scales_offset_bytes(tile.head_dim));
    const F32s scale = load_bf16(scales + slot);
    store(tile.value_scales + t, load_bf16(scales + kPageTokens + slot));
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      store(tile.scores + r * kScoreStride + t, mul(to_float(dots[r][v]), scale));
    }
  }
}

template <int kRows, int kVectors = most_vectors(kRows)>
REDOUBT_INLINE void int8_score_all(const Tile& tile, int first, int end) {
  for (; first + kVectors <= end; first += kVectors) int8_score_vectors<kRows, kVectors>(tile, first);
  if constexpr (kVectors > 2 || kPageVectors < 2) {
    if (first < end) int8_score_all<kRows, kVectors / 2>(tile, first, end);
  }
}

// A row's weights on their way: the lanes of their sum, and the largest times its value's scale.
struct Int8Weights {
  F32s sums[kSoftmaxLanes / kLanes];
  Bits largest;
};

// Scores become weights times their value's scale.
REDOUBT_INLINE void int8_weigh_row(float* scores, const float* value_scales, float maximum, float query_scale,
                                   int keys, Int8Weights& weights) {
  const F32s max = set(maximum), scale = set(query_scale);
  F32s sums[kSoftmaxLanes / kLanes];  // here, not in `weights`, so that they stay in registers
  for (F32s& lanes : sums) lanes = set(0.0f);
  Bits largest = zero_bits();
  for_vectors(keys, [&](int t, int n, int j) __attribute__((always_inline)) {
    const F32s score = n < kLanes ? load_first(scores + t, n, max) : load(scores + t);
    F32s weight = exp2_nonpositive<kExp2ToFixed>(mul(sub(score, max), scale));
    F32s scaled = mul(weight, load(value_scales + t));
    if (n < kLanes) weight = keep_first(weight, n), scaled = keep_first(scaled, n);
    sums[j] = add(sums[j], weight);
    largest = max_bits(largest, bits_of(scaled));
    store(scores + t, scaled);
  });
  for (int j = 0; j < kSoftmaxLanes / kLanes; ++j) weights.sums[j] = sums[j];
  weights.largest = largest;
}

// Scaled weights become fixed point, as int16, in the row's place; 0 from its last key to `end`.
REDOUBT_INLINE void int8_fix_row(float* scaled, FixedPoint fixed, int keys, int end) {
  auto* codes = reinterpret_cast<int16_t*>(scaled);
  int t = 0;
  if (fixed.inverse != 0.0f) {
    const F32s inverse = set(fixed.inverse);
    for (; t < keys; t += kLanes) store_int16(codes + t, mul(load(scaled + t), inverse));
  }
  if (t < end) std::memset(codes + t, 0, size_t(end - t) * sizeof(int16_t));
}

// Scores become weights times their value's scale, in fixed point as int16, in their rows' places; 0 from a
// row's last key to `end`. Writes the rows' maxima and sums, and the weights' scales. A row's passes wait for
// one another, so each is done for all rows before the next.
void int8_softmax(Tile& tile, int rows, int end, float* scales) {
  float maxima[kMaxTileRows];
  Int8Weights weights[kMaxTileRows];
  FixedPoint fixed[kMaxTileRows];
  for (int r = 0; r < rows; ++r) maxima[r] = max_score(tile.scores + r * kScoreStride, tile.keys[r]);
  for (int r = 0; r < rows; ++r) {
    int8_weigh_row(tile.scores + r * kScoreStride, tile.value_scales, maxima[r], tile.query_scales[r],
                   tile.keys[r], weights[r]);
  }
  for (int r = 0; r < rows; ++r) {
    tile.maxima[r] = maxima[r] * tile.query_scales[r];
    tile.sums[r] = sum_of_lanes(weights[r].sums);
    fixed[r] = fixed_point(max_bits_of_lanes(weights[r].largest), kLargestWeight);
    scales[r] = fixed[r].scale;
  }
  for (int r = 0; r < rows; ++r) int8_fix_row(tile.scores + r * kScoreStride, fixed[r], tile.keys[r], end);
}

// outputs[r][column ...] = weights[r][t] * values[t][column ...] for t in 0 .. pages * kPageTokens.
template <int kRows, int kVectors>
REDOUBT_INLINE void int8_value_vectors(const Tile& tile, const float (&scales)[kRows], int pages,
                                       int column) {
  constexpr int kLines = (kVectors * kLanes * 2 + 63) / 64;
  Bits sums[kRows][kVectors];
  clear(sums);
  const auto* weights = reinterpret_cast<const int32_t*>(tile.scores);
  for (int page = 0; page < pages; ++page) {
    const size_t at = tile.values_offset + size_t(column) * 2;
    const auto* values = reinterpret_cast<const int8_t*>(tile.blocks[page] + at);
    // As much of the next keys, so that memory is read at the same rate throughout.
    const auto* ahead = tile.blocks[kPartitionPages + page] + column * 2;
    for (int pair = 0; pair < kPageTokens / 2; ++pair, ++weights) {
#pragma GCC unroll 4
      for (int line = 0; line < kLines; ++line) _mm_prefetch(ahead + line * 64, _MM_HINT_T1);
      Bits value[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) value[v] = load_int8_pairs(values + v * 2 * kLanes);
      add_dots(weights, kScoreStride, value, sums);
      values += 2 * tile.head_dim;
      ahead += 2 * tile.head_dim;
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

template <int kRows, int kVectors = most_vectors(kRows)>
REDOUBT_INLINE void int8_value_all(const Tile& tile, const float (&scales)[kRows], int pages, int column) {
  for (; column + kVectors * kLanes <= tile.head_dim; column += kVectors * kLanes) {
    int8_value_vectors<kRows, kVectors>(tile, scales, pages, column);
  }
  if constexpr (kVectors > 1) {
    if (column < tile.head_dim) int8_value_all<kRows, kVectors / 2>(tile, scales, pages, column);
  }
}

template <int kRows>
void int8_partition_tile(Tile& tile) {
  const int pages = (tile.keys[kRows - 1] + kPageTokens - 1) / kPageTokens;
  int8_score_all<kRows>(tile, 0, pages * kPageVectors);
  float scales[kRows];
  int8_softmax(tile, kRows, pages * kPageTokens, scales);
  int8_value_all<kRows>(tile, scales, pages, 0);
}

// One row's query in fixed point: code d to packed[d / 2 * stride * 2 + d % 2]. Returns its scale.
float pack_int8_query(const float* query, float scale_log2e, int head_dim, int64_t stride, int16_t* packed) {
  const F32s factor = set(scale_log2e);
  Bits largest = zero_bits();
  for (int d = 0; d < head_dim; d += kLanes) {
    largest = max_bits(largest, magnitude_bits(mul(load(query + d), factor)));
  }
  const FixedPoint fixed = fixed_point(max_bits_of_lanes(largest), largest_query(head_dim));
  for (int d = 0; d < head_dim; d += kLanes) {
    alignas(32) int16_t codes[kLanes];
    const F32s scaled = mul(mul(load(query + d), factor), set(fixed.inverse));
    store_int16(codes, fixed.inverse == 0.0f ? set(0.0f) : scaled);
    for (int i = 0; i < kLanes; i += 2) std::memcpy(packed + (d + i) * stride, codes + i, 4);
  }
  return fixed.scale;
}

using PartitionTile = void (*)(Tile&);
template <KvType kType, size_t... kIndex>
PartitionTile partition_tile_of(int rows, std::index_sequence<kIndex...>) {
  static constexpr PartitionTile kByRows[] = {partition_tile<kType, int(kIndex) + 1>...};
  return kByRows[rows - 1];
}
template <size_t... kIndex>
PartitionTile int8_tile_of(int rows, std::index_sequence<kIndex...>) {
  static constexpr PartitionTile kByRows[] = {int8_partition_tile<int(kIndex) + 1>...};
  return kByRows[rows - 1];
}
PartitionTile partition_tile_of(KvType type, int rows) {
  constexpr auto kRows = std::make_index_sequence<kMaxTileRows>();
  switch (type) {
    case KvType::kFp32:
      return partition_tile_of<KvType::kFp32>(rows, kRows);
    case KvType::kBf16:
      return partition_tile_of<KvType::kBf16>(rows, kRows);
    case KvType::kInt8:
      return int8_tile_of(rows, kRows);
  }
  __builtin_unreachable();
}
