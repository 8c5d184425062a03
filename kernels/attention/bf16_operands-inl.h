// What the tiles of attention/bf16_amx-inl.h take: scratch memory, and keys, values and queries of bf16 in
// it. Included before that file's kernels, after attention/rows-inl.h.

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

// One partition's keys and values as tiles take them.
struct Partition {
  const uint16_t* keys[kPartitionPages];  // [head_dim / 2][kPageTokens][2]
};

// The pages of a partition that hold some keys.
struct PageRange {
  int begin;
  int end;
  explicit PageRange(KeyRange keys)
      : begin(keys.begin / kPageTokens), end((keys.end + kPageTokens - 1) / kPageTokens) {}
};

// A page's values; those of tokens that nobody sees are zero.
void interleave_values(const uint16_t* values, KeyRange seen, int head_dim, uint16_t* pairs) {
  for (int t = 0; t < kPageTokens; t += 2, values += 2 * head_dim) {
    for (int d = 0; d < head_dim; d += kStep, pairs += 2 * kStep) {
      const __m512i zero = _mm512_setzero_si512();
      const bool has_first = t >= seen.begin && t < seen.end;
      const bool has_second = t + 1 >= seen.begin && t + 1 < seen.end;
      const __m512i first = has_first ? _mm512_loadu_si512(values + d) : zero;
      const __m512i second = has_second ? _mm512_loadu_si512(values + head_dim + d) : zero;
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

// Of whose keys some row sees `seen`.
Partition take_partition(const AttentionTask& task, int p, KeyRange seen, const Scratch& scratch) {
  const int head_dim = task.kv.head_dim;
  const size_t page_values = size_t(head_dim) * kPageTokens;
  Partition partition;
  const PageRange pages(seen);
  for (int page = pages.begin; page < pages.end; ++page) {
    const std::byte* const block = page_block(task.kv, p * kPartitionPages + page);
    const std::byte* const values = block + values_offset_bytes(task.kv.type, head_dim);
    uint16_t* const pairs = scratch.values + size_t(page) * page_values;
    if (task.kv.type == KvType::kBf16) {
      partition.keys[page] = reinterpret_cast<const uint16_t*>(block);
      const int first = page * kPageTokens;
      interleave_values(reinterpret_cast<const uint16_t*>(values), {seen.begin - first, seen.end - first},
                        head_dim, pairs);
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
