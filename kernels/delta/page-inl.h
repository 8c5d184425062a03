// Gated DeltaNet on a tier's vectors; delta/scalar.cc defines the results. Included inside the tier's
// namespace and target region, after its vector_<tier>-inl.h, simd/exp2-inl.h, simd/row-inl.h and
// ops/silu-inl.h.

// Tiles of accumulators: rows x vectors of columns. So few columns of a state stay in the first-level cache.
inline constexpr int kTileVectors = 2;
inline constexpr int kTileRows = kAccumulators / kTileVectors;
// Of a token alone, which has a key and a query.
inline constexpr int kWideVectors = kAccumulators / 3;

// Calls operation(begin, size) with `count` items cut into pieces of these sizes, the largest first; size is
// a compile-time constant.
template <int... kSizes, typename Operation>
REDOUBT_INLINE void in_pieces(int count, const Operation& operation) {
  int begin = 0;
  const auto take = [&](auto size) __attribute__((always_inline)) {
    for (; begin + size.value <= count; begin += size.value) operation(begin, size);
  };
  (take(std::integral_constant<int, kSizes>{}), ...);
}

// What a token alone reads comes from memory: so many floats ahead of a state's, and the page's rows at once.
inline constexpr int kAheadFloats = 2048;
REDOUBT_INLINE void prefetch(const float* x, int64_t floats) {
  for (int64_t i = 0; i < floats; i += 16) _mm_prefetch(reinterpret_cast<const char*>(x + i), _MM_HINT_T0);
}

// A matrix [n][stride], n rows of columns.
struct Columns {
  const float* values;
  int64_t stride;
  int n;
};

// sums[r][c] = sum over i of matrix[i][c] x[r][i], of some rows r and columns c.
template <int kRows, int kVectors>
REDOUBT_INLINE void project_tile(const Columns& matrix, const float* const* x, float* sums, int64_t stride) {
  F32s tile[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) tile[r][v] = set(0.0f);
  }
  const float* columns = matrix.values;
  for (int i = 0; i < matrix.n; ++i, columns += matrix.stride) {
    if constexpr (kVectors > kTileVectors) prefetch(columns + kAheadFloats, kVectors * kLanes);
    F32s loaded[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) loaded[v] = load(columns + v * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const F32s factor = set(x[r][i]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) tile[r][v] = fma(loaded[v], factor, tile[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) store(sums + r * stride + v * kLanes, tile[r][v]);
  }
}

// Of `rows` rows, an even number, and `vectors` vectors of columns. Few rows take many columns at a time, so
// that a matrix in memory is read in its order.
void project(const Columns& matrix, int vectors, const float* const* x, int rows, float* sums,
             int64_t stride) {
  const auto with_rows = [&](int first_vector, auto kVectors) __attribute__((always_inline)) {
    const int col = first_vector * kLanes;
    const Columns columns{matrix.values + col, matrix.stride, matrix.n};
    if constexpr (kVectors.value > kTileVectors) {
      project_tile<2, kVectors.value>(columns, x, sums + col, stride);
    } else {
      in_pieces<kTileRows, 4, 2>(rows, [&](int r, auto kRows) __attribute__((always_inline)) {
        project_tile<kRows.value, kVectors.value>(columns, x + r, sums + r * stride + col, stride);
      });
    }
  };
  if (rows == 2) return in_pieces<kWideVectors, kTileVectors, 1>(vectors, with_rows);
  in_pieces<kTileVectors, 1>(vectors, with_rows);
}

// What a token adds up before its own change is known: S0^T k and S0^T q, and k_j . k and k_j . q by j.
struct TokenSums {
  const float* kept_k;
  const float* kept_q;
  float* key_weights;
  float* query_weights;
};

// Some vectors of columns of u_t and o_t. The weights are those of earlier tokens' changes.
template <int kVectors>
REDOUBT_INLINE void change_columns(const DeltaPage& page, int t, const TokenSums& sums, float decay,
                                   int col) {
  const int row = t - page.begin;
  F32s by_keys[kVectors], by_queries[kVectors];
  for (int v = 0; v < kVectors; ++v) by_keys[v] = by_queries[v] = set(0.0f);
  const float* change = page.changes + col;
  for (int j = 0; j < t; ++j, change += page.value_dim) {
    const F32s key_weight = set(sums.key_weights[j]), query_weight = set(sums.query_weights[j]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const F32s loaded = load(change + v * kLanes);
      by_keys[v] = fma(loaded, key_weight, by_keys[v]);
      by_queries[v] = fma(loaded, query_weight, by_queries[v]);
    }
  }
  const float* const values = page.value_rows + row * page.row_stride + col;
  float* const changes = page.changes + int64_t(t) * page.value_dim + col;
  float* const outputs = page.outputs + row * page.output_stride + col;
  for (int v = 0; v < kVectors; ++v) {
    const int at = v * kLanes;
    const F32s wanted = fma(set(-decay), load(sums.kept_k + col + at), load(values + at));
    const F32s own = mul(set(page.betas[row]), sub(wanted, by_keys[v]));
    store(changes + at, own);
    const F32s seen = fma(own, set(sums.query_weights[t]), by_queries[v]);
    store(outputs + at, fma(set(decay), load(sums.kept_q + col + at), seen));
  }
}

REDOUBT_INLINE F32s decay_weights(const DeltaPage& page, float last, int token) {
  return exp2_nonpositive(sub(set(last), load(page.decays + token)), kExp2SmallestScaled);
}

void run_token(const DeltaPage& page, int t, const TokenSums& sums) {
  for (int j = 0; j <= t; j += kLanes) {
    const F32s weights = decay_weights(page, page.decays[t], j);
    store(sums.key_weights + j, mul(weights, load(sums.key_weights + j)));
    store(sums.query_weights + j, mul(weights, load(sums.query_weights + j)));
  }
  float powers[kLanes];
  store(powers, exp2_nonpositive(set(page.decays[t]), kExp2SmallestScaled));
  in_pieces<kWideVectors, 2, 1>(page.value_dim / kLanes,
                                [&](int vector, auto kVectors) __attribute__((always_inline)) {
                                  change_columns<kVectors.value>(page, t, sums, powers[0], vector * kLanes);
                                });
}

template <int kRows, int kVectors>
REDOUBT_INLINE void end_tile(const DeltaPage& page, const float (&keys)[kTileRows][kPageTokens], F32s decay,
                             int first_row, int col) {
  const int64_t n = page.value_dim;
  F32s tile[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = (first_row + r) * n + col + v * kLanes;
      tile[r][v] = page.state == nullptr ? set(0.0f) : mul(load(page.state + at), decay);
    }
  }
  const float* change = page.changes + col;
  for (int j = 0; j < kPageTokens; ++j, change += n) {
    F32s loaded[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) loaded[v] = load(change + v * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const F32s key = set(keys[r][j]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) tile[r][v] = fma(key, loaded[v], tile[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      store(page.end_state + (first_row + r) * n + col + v * kLanes, tile[r][v]);
    }
  }
}

void end_page(const DeltaPage& page) {
  const float last = page.decays[kPageTokens - 1];
  const F32s decay = exp2_nonpositive(set(last), kExp2SmallestScaled);
  F32s weights[kPageTokens / kLanes];
  for (int v = 0; v < kPageTokens / kLanes; ++v) weights[v] = decay_weights(page, last, v * kLanes);
  in_pieces<kTileRows, 4, 2, 1>(page.key_dim, [&](int row, auto kRows) __attribute__((always_inline)) {
    alignas(64) float keys[kTileRows][kPageTokens];
    for (int r = 0; r < kRows.value; ++r) {
      const float* const from = page.keys + (row + r) * kPageTokens;
      for (int v = 0; v < kPageTokens / kLanes; ++v) {
        store(keys[r] + v * kLanes, mul(load(from + v * kLanes), weights[v]));
      }
    }
    in_pieces<kTileVectors, 1>(
        page.value_dim / kLanes, [&](int vector, auto kVectors) __attribute__((always_inline)) {
          end_tile<kRows.value, kVectors.value>(page, keys, decay, row, vector * kLanes);
        });
  });
}

// value_dim is a multiple of 16.
void delta_page(const DeltaPage& page, float* scratch) {
  const int count = page.end - page.begin, n = page.value_dim;
  float* const kept = scratch;                             // [count][2][value_dim]
  float* const dots = kept + size_t(2) * kPageTokens * n;  // [count][2][kPageTokens]
  const float* x[2 * kPageTokens];
  for (int i = 0; i < count; ++i) {
    x[2 * i] = page.key_rows + i * page.row_stride;
    x[2 * i + 1] = page.query_rows + i * page.row_stride;
  }
  if (count == 1) {
    prefetch(page.keys, int64_t(page.key_dim) * kPageTokens);
    prefetch(page.changes, int64_t(page.begin) * n);
  }
  if (page.state == nullptr) {
    std::memset(kept, 0, size_t(2) * size_t(count) * size_t(n) * sizeof(float));
  } else {
    project({page.state, n, page.key_dim}, n / kLanes, x, 2 * count, kept, n);
  }
  project({page.keys, kPageTokens, page.key_dim}, (page.end + kLanes - 1) / kLanes, x, 2 * count, dots,
          kPageTokens);
  for (int i = 0; i < count; ++i) {
    const float* const own = kept + size_t(2) * i * n;
    float* const weights = dots + 2 * i * kPageTokens;
    run_token(page, page.begin + i, {own, own + n, weights, weights + kPageTokens});
  }
  if (page.end == kPageTokens) end_page(page);
}

void convolve_silu(const DeltaConvolution& convolution) {
  const int channels = convolution.channels, taps = convolution.taps;
  for (int64_t r = convolution.count - 1; r >= 0; --r) {
    const float* x[kMostTaps];
    for (int tap = 0; tap < taps; ++tap) {
      const int64_t from = r - (taps - 1) + tap;
      x[tap] = from >= 0 ? convolution.rows + from * convolution.stride
                         : convolution.history + (from + taps - 1) * channels;
    }
    float* const row = convolution.rows + r * convolution.stride;
    over_row(channels, [&](int i, auto lanes) __attribute__((always_inline)) {
      F32s sum = set(0.0f);
      for (int tap = 0; tap < taps; ++tap)
        sum = fma(lanes.get(convolution.weights + tap * convolution.weight_stride + i), lanes.get(x[tap] + i),
                  sum);
      lanes.put(row + i, silu(sum));
    });
  }
}

void l2_normalize(float* x, float factor, int n) {
  constexpr int kVectors = kNormLanes / kLanes;
  F32s squares[kVectors];
  for (int j = 0; j < kVectors; ++j) squares[j] = set(0.0f);
  over_row(n, [&](int i, auto lanes) __attribute__((always_inline)) {
    F32s& sum = squares[i / kLanes % kVectors];
    sum = fma(lanes.get(x + i), lanes.get(x + i), sum);
  });
  const F32s inverse = set(factor / std::sqrt(sum_of_lanes(squares) + kL2Epsilon));
  over_row(n, [&](int i, auto lanes)
                  __attribute__((always_inline)) { lanes.put(x + i, mul(lanes.get(x + i), inverse)); });
}
