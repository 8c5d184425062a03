// Norms, sums, RoPE, KV writes and the passes over logits, written once for all vector tiers; the scalar
// twins define the results. Included inside the tier's namespace and target region, after its
// vector_<tier>-inl.h, simd/exp2-inl.h, simd/tanh-inl.h and simd/row-inl.h.

void rms_norm(const float* x, const float* weight, float epsilon, int n, float* out) {
  constexpr int kVectors = kNormLanes / kLanes;
  F32s squares[kVectors];
  for (int j = 0; j < kVectors; ++j) squares[j] = set(0.0f);
  int i = 0;
  for (; i + kNormLanes <= n; i += kNormLanes) {
    for (int j = 0; j < kVectors; ++j) {
      const F32s x_j = load(x + i + j * kLanes);
      squares[j] = fma(x_j, x_j, squares[j]);
    }
  }
  for (int j = 0; i < n; i += kLanes, ++j) {
    const F32s x_j = n - i < kLanes ? load_first(x + i, n - i, set(0.0f)) : load(x + i);
    squares[j] = fma(x_j, x_j, squares[j]);
  }
  const float inverse = 1.0f / std::sqrt(sum_of_lanes(squares) / float(n) + epsilon);
  for (i = 0; i + kLanes <= n; i += kLanes) {
    store(out + i, mul(mul(load(x + i), set(inverse)), load(weight + i)));
  }
  for (; i < n; ++i) out[i] = x[i] * inverse * weight[i];
}

void layer_norm(const float* x, const float* weight, const float* bias, float epsilon, int n, float* out) {
  constexpr int kVectors = kNormLanes / kLanes;
  F32s sums[kVectors], squares[kVectors];
  for (int j = 0; j < kVectors; ++j) sums[j] = squares[j] = set(0.0f);
  int i = 0;
  for (; i + kNormLanes <= n; i += kNormLanes) {
    for (int j = 0; j < kVectors; ++j) sums[j] = add(sums[j], load(x + i + j * kLanes));
  }
  for (int j = 0; i < n; i += kLanes, ++j) {
    sums[j] = add(sums[j], n - i < kLanes ? load_first(x + i, n - i, set(0.0f)) : load(x + i));
  }
  const F32s mean = set(sum_of_lanes(sums) / float(n));
  for (i = 0; i + kNormLanes <= n; i += kNormLanes) {
    for (int j = 0; j < kVectors; ++j) {
      const F32s d = sub(load(x + i + j * kLanes), mean);
      squares[j] = fma(d, d, squares[j]);
    }
  }
  for (int j = 0; i < n; i += kLanes, ++j) {
    const F32s d = n - i < kLanes ? sub(load_first(x + i, n - i, mean), mean) : sub(load(x + i), mean);
    squares[j] = fma(d, d, squares[j]);
  }
  const F32s inverse = set(1.0f / std::sqrt(sum_of_lanes(squares) / float(n) + epsilon));
  over_row(n, [&](int at, auto lanes) __attribute__((always_inline)) {
    const F32s normal = mul(sub(lanes.get(x + at), mean), inverse), by = lanes.get(weight + at);
    lanes.put(out + at, bias == nullptr ? mul(normal, by) : fma(normal, by, lanes.get(bias + at)));
  });
}

void convolve_gated(const GatedRows& rows) {
  over_row(rows.channels, [&](int c, auto lanes) __attribute__((always_inline)) {
    for (int64_t r = 0; r < rows.count; ++r) {
      float* const x = rows.values + r * rows.stride + c;
      lanes.put(x, mul(lanes.get(rows.before + r * rows.stride + c), lanes.get(x)));
      F32s sum = rows.bias == nullptr ? set(0.0f) : lanes.get(rows.bias + c);
      for (int j = 0; j < rows.tap_count; ++j) {
        const int64_t from = r - (rows.tap_count - 1) + j;
        const float* const seen = from >= 0 ? rows.values + from * rows.stride : rows.history[r + j];
        if (seen != nullptr)
          sum = fma(lanes.get(rows.taps + j * rows.tap_stride + c), lanes.get(seen + c), sum);
      }
      lanes.put(rows.output + r * rows.output_stride + c,
                mul(lanes.get(rows.behind + r * rows.stride + c), sum));
    }
  });
}

void add_scaled(const float* x, float factor, int n, float* y) {
  over_row(n, [&](int i, auto lanes) __attribute__((always_inline)) {
    lanes.put(y + i, fma(set(factor), lanes.get(x + i), lanes.get(y + i)));
  });
}

void scale(float* x, float factor, int n) {
  over_row(n, [&](int i, auto lanes)
                  __attribute__((always_inline)) { lanes.put(x + i, mul(lanes.get(x + i), set(factor))); });
}

void softcap(float* x, float cap, int n) {
  over_row(n, [&](int i, auto lanes) __attribute__((always_inline)) {
    lanes.put(x + i, mul(set(cap), tanh(div(lanes.get(x + i), set(cap)))));
  });
}

void rope(float* head, const float* cos_sin, int rotary_dim) {
  const int half = rotary_dim / 2;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const F32s cosine = load(cos_sin + i), sine = load(cos_sin + half + i);
    const F32s a = load(head + i), b = load(head + half + i);
    store(head + i, fms(a, cosine, mul(b, sine)));
    store(head + half + i, fma(b, cosine, mul(a, sine)));
  }
  if (i < half) {
    const int n = half - i;
    const F32s zero = set(0.0f);
    const F32s cosine = load_first(cos_sin + i, n, zero), sine = load_first(cos_sin + half + i, n, zero);
    const F32s a = load_first(head + i, n, zero), b = load_first(head + half + i, n, zero);
    store_first(head + i, fms(a, cosine, mul(b, sine)), n);
    store_first(head + half + i, fma(b, cosine, mul(a, sine)), n);
  }
}

FixedPoint fixed_point_of(KvType type, const float* x, int n) {
  Bits largest = zero_bits();
  for (int i = 0; i < n; i += kLanes) largest = max_bits(largest, magnitude_bits(load(x + i)));
  return kv_fixed_point(type, max_bits_of_lanes(largest));
}
// x * inverse, to be rounded to integers; 0 if inverse is 0, whatever x is.
REDOUBT_INLINE F32s codes_of(const float* x, float inverse) {
  return inverse == 0.0f ? set(0.0f) : mul(load(x), set(inverse));
}

// For pages of integers; Code is their type.
template <typename Code>
void write_codes(KvType type, std::byte* block, int slot, int head_dim, const float* key,
                 const float* value) {
  auto* keys = reinterpret_cast<Code*>(block) + 2 * slot;
  auto* values = reinterpret_cast<Code*>(block + values_offset_bytes(type, head_dim)) +
                 slot / 2 * 2 * head_dim + slot % 2;
  auto* scales = reinterpret_cast<uint16_t*>(block + scales_offset_bytes(type, head_dim)) + slot;
  const FixedPoint of_key = fixed_point_of(type, key, head_dim);
  const FixedPoint of_value = fixed_point_of(type, value, head_dim);
  scales[0] = float_to_bf16(of_key.scale);
  scales[kPageTokens] = float_to_bf16(of_value.scale);
  for (int d = 0; d < head_dim; d += kLanes) {
    store_apart(values + 2 * d, codes_of(value + d, of_value.inverse));
    alignas(32) Code codes[kLanes];
    store_integers(codes, codes_of(key + d, of_key.inverse));
    for (int i = 0; i < kLanes; i += 2) {
      std::memcpy(keys + (d + i) * kPageTokens, codes + i, 2 * sizeof(Code));
    }
  }
}

// head_dim is a multiple of 16.
void write_kv(const KvView& kv, int32_t token, const float* key, const float* value) {
  std::byte* block = page_block(kv, token / kPageTokens);
  const int slot = token % kPageTokens, head_dim = kv.head_dim;
  std::byte* values = block + values_offset_bytes(kv.type, head_dim);
  if (kv.type == KvType::kFp32) {
    auto* keys = reinterpret_cast<float*>(block) + slot;
    for (int d = 0; d < head_dim; ++d) keys[d * kPageTokens] = key[d];
    std::memcpy(reinterpret_cast<float*>(values) + slot * head_dim, value, size_t(head_dim) * sizeof(float));
    return;
  }
  if (kv.type == KvType::kInt16) return write_codes<int16_t>(kv.type, block, slot, head_dim, key, value);
  if (kv.type == KvType::kInt8) return write_codes<int8_t>(kv.type, block, slot, head_dim, key, value);
  auto* v = reinterpret_cast<uint16_t*>(values) + slot * head_dim;
  auto* keys = reinterpret_cast<uint32_t*>(block) + slot;
  for (int d = 0; d < head_dim; d += kLanes) {
    store_bf16(v + d, load(value + d));
    alignas(64) uint32_t pairs[kLanes / 2];
    store_bf16(reinterpret_cast<uint16_t*>(pairs), load(key + d));
    for (int i = 0; i < kLanes / 2; ++i) keys[(d / 2 + i) * kPageTokens] = pairs[i];
  }
}

void block_maxima(const float* logits, int n, float* maxima) {
  const F32s lowest = set(-std::numeric_limits<float>::infinity());
  for (int begin = 0; begin < n; begin += kLogitBlock) {
    const int end = begin + kLogitBlock < n ? begin + kLogitBlock : n;
    F32s max[2] = {lowest, lowest};
    int i = begin;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      max[0] = max_of(load(logits + i), max[0]);
      max[1] = max_of(load(logits + i + kLanes), max[1]);
    }
    for (; i + kLanes <= end; i += kLanes) max[0] = max_of(load(logits + i), max[0]);
    if (i < end) max[1] = max_of(load_first(logits + i, end - i, lowest), max[1]);
    maxima[begin / kLogitBlock] = max_of_lanes(max_of(max[0], max[1]));
  }
}

REDOUBT_INLINE F32s softmax_weight(F32s logits, float max, float scale) {
  const F32s x = mul(sub(logits, set(max)), set(scale));
  return zero_unless_at_least(x, kExp2Smallest, exp2_unchecked(x));
}

void softmax_weights(float* logits, int n, float max, float scale, float* sums) {
  constexpr int kVectors = kSoftmaxLanes / kLanes;
  for (int begin = 0; begin < n; begin += kLogitBlock) {
    const int end = begin + kLogitBlock < n ? begin + kLogitBlock : n;
    F32s lanes[kVectors];
    for (int j = 0; j < kVectors; ++j) lanes[j] = set(0.0f);
    for (int i = begin, j = 0; i < end; i += kLanes, j = (j + 1) % kVectors) {
      if (i + kLanes <= end) {
        const F32s weight = softmax_weight(load(logits + i), max, scale);
        store(logits + i, weight);
        lanes[j] = add(lanes[j], weight);
      } else {
        const F32s nothing = set(-std::numeric_limits<float>::infinity());
        const F32s weight = softmax_weight(load_first(logits + i, end - i, nothing), max, scale);
        store_first(logits + i, weight, end - i);
        lanes[j] = add(lanes[j], weight);
      }
    }
    sums[begin / kLogitBlock] = sum_of_lanes(lanes);
  }
}
