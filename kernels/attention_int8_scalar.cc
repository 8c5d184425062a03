// Attention over int8 pages, scalar: defines what one row's state over one partition is. The rest of
// attention is as in attention_scalar.cc.
//
// The products are of integers, so they are exact in any order. With q = query * (scale * log2(e)), per
// partition:
//   q = d_q i_q[d] with |i_q| <= largest_query(head_dim);  s_t = float(sum over d of i_q[d] k_t[d]) * d_k[t]
//   m = max s_t;  p_t = 2^((s_t - m) * d_q) by kExp2ToFixed, 0 below 2^kExp2Smallest
//   sum = p_t over kSoftmaxLanes lanes
//   w_t = p_t d_v[t] = d_w i_w[t] with i_w <= kLargestWeight;  o[d] = float(sum over t of i_w[t] v_t[d]) *
//   d_w
// and the state's maximum is m * d_q. Queries are off by 2^-16 of their largest element and weights by 2^-16
// of the partition's largest and 2^-18 of themselves, where int8 keys and values are off by 2^-8 of theirs.
#include <algorithm>
#include <limits>

#include "ops_scalar.h"

namespace redoubt::scalar {
namespace {

struct Int8Page {
  const int8_t* keys;
  const int8_t* values;
  const uint16_t* scales;
  int head_dim;
  Int8Page(const std::byte* block, int dim)
      : keys(reinterpret_cast<const int8_t*>(block)),
        values(keys + values_offset_bytes(KvType::kInt8, dim)),
        scales(reinterpret_cast<const uint16_t*>(block + scales_offset_bytes(dim))),
        head_dim(dim) {}
  int32_t key(int d, int slot) const { return keys[(d / 2 * kPageTokens + slot) * 2 + d % 2]; }
  int32_t value(int d, int slot) const { return values[(slot / 2 * head_dim + d) * 2 + slot % 2]; }
  float key_scale(int slot) const { return bf16_to_float(scales[slot]); }
  float value_scale(int slot) const { return bf16_to_float(scales[kPageTokens + slot]); }
};

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
int32_t code_of(float x, FixedPoint fixed) {
  return fixed.inverse == 0.0f ? 0 : int32_t(std::nearbyint(x * fixed.inverse));
}

}  // namespace

void attention_row_int8(const KvView& kv, const float* query, float scale_log2e, int first, int keys,
                        float* state) {
  const int head_dim = kv.head_dim;
  const auto page_of = [&](int t) { return Int8Page(page_block(kv, (first + t) / kPageTokens), head_dim); };

  uint32_t largest = 0;
  for (int d = 0; d < head_dim; ++d) {
    largest = std::max(largest, bits_of(query[d] * scale_log2e) & kMagnitudeBits);
  }
  const FixedPoint of_query = fixed_point(largest, largest_query(head_dim));

  float weights[kPartitionTokens];
  float max = -std::numeric_limits<float>::infinity();
  for (int t = 0; t < keys; ++t) {
    const Int8Page page = page_of(t);
    int32_t dot = 0;
    for (int d = 0; d < head_dim; ++d) {
      dot += code_of(query[d] * scale_log2e, of_query) * page.key(d, t % kPageTokens);
    }
    weights[t] = float(dot) * page.key_scale(t % kPageTokens);
    max = weights[t] > max ? weights[t] : max;
  }

  float lanes[kSoftmaxLanes] = {};
  largest = 0;
  for (int t = 0; t < keys; ++t) {
    const float weight = exp2_nonpositive<kExp2ToFixed>((weights[t] - max) * of_query.scale);
    lanes[t % kSoftmaxLanes] += weight;
    weights[t] = weight * page_of(t).value_scale(t % kPageTokens);
    largest = std::max(largest, bits_of(weights[t]));
  }
  state[kStateMax] = max * of_query.scale;
  state[kStateSum] = sum_lanes(lanes);

  const FixedPoint of_weights = fixed_point(largest, kLargestWeight);
  for (int d = 0; d < head_dim; ++d) {
    int32_t sum = 0;
    for (int t = 0; t < keys; ++t) {
      sum += code_of(weights[t], of_weights) * page_of(t).value(d, t % kPageTokens);
    }
    state[kStateOutput + d] = float(sum) * of_weights.scale;
  }
}

}  // namespace redoubt::scalar
