// Attention of one row over one partition in bf16 products, scalar: defines the result, over bf16 and int8
// pages.
//
// As in attention/scalar.cc, but q = bf16(query * (scale * log2(e))), and sums are those of tiles (Intel SDM
// volume 2, "TDPBF16PS"): for each 32 addends in ascending order
//   even = fma of those with even index, odd = fma of the others, both from 0;  sum = sum + (even + odd)
// with 0 for every subnormal number; keys that the row doesn't see are addends of 0. Of int8 pages, keys and
// values are their codes times 2^16, s_t is the sum times (the key's scale * 2^-16). p_t = 2^x, x = s_t - m
// but not less than kExp2SmallestScaled, by kExp2ToBf16, where f is rounded down. Weights of values are
// bf16(p_t), over int8 pages bf16(p_t * the value's scale); there the output is the sum times 2^-16.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/scalar.h"
#include "simd/scalar.h"

namespace redoubt::scalar {
namespace {

constexpr int kStep = 32;  // addends of one product of tiles

// Keys and values of the page that holds a token, as the products use them.
class Page {
 public:
  Page(const KvView& kv, int token)
      : kv_(kv), slot_(token % kPageTokens), block_(page_block(kv, token / kPageTokens)) {}

  float key(int d) const { return number(0, (d / 2 * kPageTokens + slot_) * 2 + d % 2); }
  float value(int d) const {
    const int at =
        kv_.type == KvType::kInt8 ? (slot_ / 2 * kv_.head_dim + d) * 2 + slot_ % 2 : slot_ * kv_.head_dim + d;
    return number(values_offset_bytes(kv_.type, kv_.head_dim), at);
  }
  float key_scale() const { return scale(slot_); }
  float value_scale() const { return scale(kPageTokens + slot_); }

 private:
  float number(size_t offset, int at) const {
    if (kv_.type == KvType::kInt8)
      return float(reinterpret_cast<const int8_t*>(block_ + offset)[at]) * 0x1p16f;
    return flush_subnormal(bf16_to_float(reinterpret_cast<const uint16_t*>(block_ + offset)[at]));
  }
  float scale(int at) const {
    const auto* scales =
        reinterpret_cast<const uint16_t*>(block_ + scales_offset_bytes(kv_.type, kv_.head_dim));
    return bf16_to_float(scales[at]);
  }

  const KvView& kv_;
  int slot_;
  const std::byte* block_;
};

float round_to_bf16(float x) { return bf16_to_float(float_to_bf16(flush_subnormal(x))); }

// The sum of addends [begin, end), x(i) * y(i), as tiles add them.
template <typename X, typename Y>
float sum_of_products(int begin, int end, const X& x, const Y& y) {
  float sum = 0.0f;
  for (int first = begin / kStep * kStep; first < end; first += kStep) {
    float sums[2] = {};
    for (int i = std::max(first, begin); i < std::min(first + kStep, end); ++i) {
      sums[i % 2] = flush_subnormal(std::fma(x(i), y(i), sums[i % 2]));
    }
    sum = flush_subnormal(sum + flush_subnormal(sums[0] + sums[1]));
  }
  return sum;
}

float exp2_to_bf16(float x) {
  if (x < kExp2SmallestScaled) x = kExp2SmallestScaled;
  const double floor = std::floor(double(x)), fraction = double(x) - floor;
  float f = float(fraction);
  if (double(f) > fraction || f == 1.0f) f = std::nextafter(f, 0.0f);
  float poly = std::fma(kExp2ToBf16[2], f, kExp2ToBf16[1]);
  poly = std::fma(poly, f, kExp2ToBf16[0]);
  poly = std::fma(poly, f, 1.0f);
  return std::isnan(x) ? x : std::ldexp(poly, int(floor));
}

}  // namespace

void attention_row_bf16(const PartitionRow& row, float* state) {
  const KvView& kv = row.kv;
  const int begin = row.seen.begin, end = row.seen.end;
  const bool is_int8 = kv.type == KvType::kInt8;
  float scores[kPartitionTokens], max = -std::numeric_limits<float>::infinity();
  for (int t = begin; t < end; ++t) {
    const Page page(kv, row.first + t);
    scores[t] = sum_of_products(
        0, kv.head_dim, [&](int d) { return round_to_bf16(row.query[d] * row.scale_log2e); },
        [&](int d) { return page.key(d); });
    if (is_int8) scores[t] *= page.key_scale() * 0x1p-16f;
    scores[t] = row.modified(scores[t], t);
    max = scores[t] > max ? scores[t] : max;
  }
  float weights[kPartitionTokens], lanes[kSoftmaxLanes] = {};
  for (int t = begin; t < end; ++t) {
    const float weight = exp2_to_bf16(scores[t] - max);
    lanes[t % kSoftmaxLanes] += weight;
    weights[t] = round_to_bf16(is_int8 ? weight * Page(kv, row.first + t).value_scale() : weight);
  }
  state[kStateMax] = max;
  state[kStateSum] = sum_lanes(lanes);
  for (int d = 0; d < kv.head_dim; ++d) {
    const float sum = sum_of_products(
        begin, end, [&](int t) { return weights[t]; },
        [&](int t) { return Page(kv, row.first + t).value(d); });
    state[kStateOutput + d] = is_int8 ? sum * 0x1p-16f : sum;
  }
}

}  // namespace redoubt::scalar
