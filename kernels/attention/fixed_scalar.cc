// Attention over pages of integers, scalar: defines what one row's state over one partition is. The rest of
// attention is as in attention/scalar.cc.
//
// The products are of integers, so they are exact in any order. With q = query * (scale * log2(e)), per
// partition:
//   q = d_q i_q[d];  s_t = float(sum over d of i_q[d] k_t[d]) * d_k[t];  m = max s_t
//   p_t = 2^((s_t - m) * d_q) by kExp2ToFixed, 0 below 2^kExp2SmallestScaled
//   sum = p_t over kSoftmaxLanes lanes (t % kSoftmaxLanes)
//   w_t = p_t d_v[t] = d_w i_w[t];  o[d] = float(sum over t of i_w[t] v_t[d]) * d_w
// A soft cap or ALiBi (attention/scalar.cc) takes s_t * d_q, and d_q is 1 in what follows. Only keys that the
// row sees count. d_q and d_w are factors_fixed_point's, of sums over kSoftmaxLanes lanes; and the state's
// maximum is m * d_q. Over int8 pages, whose numbers are off by 2^-8 of a token's largest, queries are off by
// 2^-16 of their largest element and weights by 2^-16 of the partition's largest and 2^-18 of themselves.
// Over int16 pages, whose numbers are off by 2^-13, queries and weights are off by that or by 2^-20 of the
// sum of all, whichever is more.
#include <algorithm>
#include <limits>

#include "attention/scalar.h"
#include "contract/attention.h"
#include "simd/scalar.h"

namespace redoubt::scalar {
namespace {

// One token of a page.
struct Token {
  KvType type;
  int head_dim;
  int slot;
  const std::byte* block;
  Token(const KvView& kv, int token)
      : type(kv.type),
        head_dim(kv.head_dim),
        slot(token % kPageTokens),
        block(page_block(kv, token / kPageTokens)) {}

  int32_t key(int d) const { return code(0, (d / 2 * kPageTokens + slot) * 2 + d % 2); }
  int32_t value(int d) const {
    return code(values_offset_bytes(type, head_dim), (slot / 2 * head_dim + d) * 2 + slot % 2);
  }
  float key_scale() const { return scale(slot); }
  float value_scale() const { return scale(kPageTokens + slot); }

  int32_t code(size_t offset, int at) const {
    if (type == KvType::kInt8) return reinterpret_cast<const int8_t*>(block + offset)[at];
    return reinterpret_cast<const int16_t*>(block + offset)[at];
  }
  float scale(int at) const {
    return bf16_to_float(reinterpret_cast<const uint16_t*>(block + scales_offset_bytes(type, head_dim))[at]);
  }
};

// What factors_fixed_point needs of numbers.
struct Magnitudes {
  uint32_t largest = 0;
  float lanes[kSoftmaxLanes] = {};
  void take(float x, int lane) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x) & kMagnitudeBits;
    largest = std::max(largest, magnitude);
    lanes[lane % kSoftmaxLanes] += std::bit_cast<float>(magnitude);
  }
};

int32_t code_of(float x, FixedPoint fixed) {
  return fixed.inverse == 0.0f ? 0 : int32_t(std::nearbyint(x * fixed.inverse));
}

}  // namespace

void attention_row_fixed(const PartitionRow& row, float* state) {
  const KvView& kv = row.kv;
  const int head_dim = kv.head_dim, begin = row.seen.begin, end = row.seen.end;
  Magnitudes queries;
  for (int d = 0; d < head_dim; ++d) queries.take(row.query[d] * row.scale_log2e, d);
  const FixedPoint of_query =
      factors_fixed_point(kv.type, queries.largest, sum_lanes(queries.lanes), head_dim);

  int32_t codes[std::max(kMaxHeadDim, kPartitionTokens)];
  for (int d = 0; d < head_dim; ++d) codes[d] = code_of(row.query[d] * row.scale_log2e, of_query);

  const bool modifies = row.modifier.modifies();
  const float score_scale = modifies ? 1.0f : of_query.scale;
  float weights[kPartitionTokens];
  float max = -std::numeric_limits<float>::infinity();
  for (int t = begin; t < end; ++t) {
    const Token token(kv, row.first + t);
    int32_t dot = 0;
    for (int d = 0; d < head_dim; ++d) dot += codes[d] * token.key(d);
    weights[t] = float(dot) * token.key_scale();
    if (modifies) weights[t] = row.modified(weights[t] * of_query.scale, t);
    max = weights[t] > max ? weights[t] : max;
  }

  float lanes[kSoftmaxLanes] = {};
  Magnitudes scaled;
  for (int t = begin; t < end; ++t) {
    const float weight =
        exp2_nonpositive<kExp2ToFixed>((weights[t] - max) * score_scale, kExp2SmallestScaled);
    lanes[t % kSoftmaxLanes] += weight;
    weights[t] = weight * Token(kv, row.first + t).value_scale();
    scaled.take(weights[t], t);
  }
  state[kStateMax] = max * score_scale;
  state[kStateSum] = sum_lanes(lanes);

  const FixedPoint of_weights =
      factors_fixed_point(kv.type, scaled.largest, sum_lanes(scaled.lanes), kPartitionTokens);
  for (int t = begin; t < end; ++t) codes[t] = code_of(weights[t], of_weights);
  for (int d = 0; d < head_dim; ++d) {
    int32_t sum = 0;
    for (int t = begin; t < end; ++t) sum += codes[t] * Token(kv, row.first + t).value(d);
    state[kStateOutput + d] = float(sum) * of_weights.scale;
  }
}

}  // namespace redoubt::scalar
