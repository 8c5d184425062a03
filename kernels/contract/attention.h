// What attention kernels take and return: pages of keys and values, a task, the states of partitions, and the
// fixed-point numbers of pages of integers. Knows no kernel and no tier.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "contract/float_formats.h"

namespace redoubt {

inline constexpr int kMaxHeadDim = 1024;

enum class KvType : uint8_t { kFp32, kBf16, kInt16, kInt8 };

// Whether keys and values are integers, with a scale per token.
inline constexpr bool is_fixed_point(KvType type) { return type >= KvType::kInt16; }

// Keys and values live in pages of kPageTokens tokens. For each (layer, page, kv head) a block holds the keys
// transposed, so that a score for 16 tokens is a row of broadcast multiplications, and then the values:
//   fp32:        K[head_dim][kPageTokens]            then V[kPageTokens][head_dim]
//   bf16:        K[head_dim / 2][kPageTokens][2]     then V[kPageTokens][head_dim]
//   int16, int8: K[head_dim / 2][kPageTokens][2]     then V[kPageTokens / 2][head_dim][2]
//                then bf16 scales of the keys [kPageTokens], and of the values [kPageTokens]
// A token's integer key (or value) x has a scale of its own: d = bf16(max|x| / largest_code(type)),
// q = round(x * (1 / d)), both to nearest even; all 0 where max|x| < kSmallestQuantized; d NaN and q 0 where
// x is not finite. int16 has 12 bits and a sign, so that sums of products fit 32 bits (below). Its pages are
// of bf16's size and more exact.
inline constexpr int kPageTokens = 32;
// Attention takes partitions of this many keys separately (all scores, then one softmax, then the values) and
// merges them in ascending order, whichever thread computes them: so long contexts can be split over threads
// and still give the same bits.
inline constexpr int kPartitionTokens = 512;

inline constexpr size_t kv_number_bytes(KvType type) {
  return type == KvType::kFp32 ? 4 : type == KvType::kInt8 ? 1 : 2;
}
inline constexpr size_t kv_block_bytes(KvType type, int head_dim) {
  const size_t values = size_t(2) * head_dim * kPageTokens * kv_number_bytes(type);
  return values + (is_fixed_point(type) ? 4 * kPageTokens : 0);
}

// One sequence's keys and values of one (layer, kv head).
struct KvView {
  std::byte* base = nullptr;            // block of page 0 for this layer and head
  int64_t page_stride = 0;              // bytes from one page's block to the next page's
  const int32_t* page_table = nullptr;  // page_table[t / kPageTokens] holds token t
  KvType type = KvType::kFp32;
  int32_t head_dim = 0;  // even; a multiple of 16 for the vector tiers, else the caller uses the scalar tier
};

// Whether attention_bf16 can read such pages.
inline bool can_attend_in_bf16(KvType type, int head_dim) {
  return (type == KvType::kBf16 || type == KvType::kInt8) && head_dim % 32 == 0 && head_dim <= 128;
}

// A range of a view's pages.
struct KvPages {
  KvView kv;
  int32_t first = 0;
  int32_t count = 0;
};

// Attention of one kv head's query group. Query token i (0 <= i < query_tokens) is at position context_before
// + i and sees the last `window` keys up to and including its own, or all of them, and `ahead` keys after its
// own, of `keys` in all. Pages without visible keys are not read, and their page table entries need not be
// valid.
struct AttentionTask {
  const float* queries = nullptr;  // token i, head h of the group: queries + i * token_stride + h * head_dim
  float* output = nullptr;         // same shape and strides as queries, may not alias them
  int64_t query_token_stride = 0;
  int64_t output_token_stride = 0;
  int32_t query_tokens = 0;
  int32_t group_heads = 0;
  int32_t context_before = 0;
  int32_t window = 0;  // keys; 0: all
  int32_t ahead = 0;   // keys; 0: attention is causal
  int32_t keys = 0;    // the sequence's, unless attention is causal
  float scale = 1.0f;
  float softcap = 0.0f;           // scores become softcap * tanh(score / softcap); 0: they stay
  const float* slopes = nullptr;  // [group_heads], ALiBi: slope * (query's position - key's) less; null: none
  const float* sinks = nullptr;   // [group_heads], the score of one more key whose value is 0; null: none
  KvView kv;
  KvPages upcoming;  // of the thread's next task, if any: their keys are prefetched towards the end
};

// The state of one partition for one (query token, head): maximum (of scores times log2(e)), sum, and
// unnormalized output[head_dim]; -infinity, 0 and zeros where it sees none of the keys. Partial states are
// laid out [query_tokens * group_heads][head_dim + 2].
inline constexpr int kStateMax = 0;
inline constexpr int kStateSum = 1;
inline constexpr int kStateOutput = 2;
inline constexpr int state_floats(int head_dim) { return head_dim + kStateOutput; }

// The end of the keys that a token sees which is the last of `tokens`.
inline int end_key(int tokens, int ahead, int keys) {
  return ahead == 0 ? tokens : keys - tokens > ahead ? tokens + ahead : keys;
}
// The same of a query token, which sees those from first_key on.
inline int visible_keys(const AttentionTask& task, int query_token) {
  return end_key(task.context_before + query_token + 1, task.ahead, task.keys);
}
// Likewise of a token that is the last of `tokens`.
inline int first_key(int tokens, int window) { return window == 0 || tokens < window ? 0 : tokens - window; }
inline int first_key(const AttentionTask& task, int query_token) {
  return first_key(task.context_before + query_token + 1, task.window);
}
inline int partitions_of(int keys) { return (keys + kPartitionTokens - 1) / kPartitionTokens; }
// The first partition that a query token sees; that of token 0 is the task's first.
inline int first_partition(const AttentionTask& task, int query_token = 0) {
  return first_key(task, query_token) / kPartitionTokens;
}
// Number of partitions that the tokens of a task see.
inline int partition_count(const AttentionTask& task) {
  return partitions_of(visible_keys(task, task.query_tokens - 1)) - first_partition(task);
}
// Number of the first `keys` keys that lie in partition p.
inline int keys_in_partition(int keys, int p) {
  const int rest = keys - p * kPartitionTokens;
  return rest < 0 ? 0 : rest > kPartitionTokens ? kPartitionTokens : rest;
}
// Keys of a partition, counted from its first.
struct KeyRange {
  int begin = 0;
  int end = 0;
  bool empty() const { return begin == end; }
};
// The keys of the partition that a query token sees. Both ends rise with the token.
inline KeyRange seen_in_partition(const AttentionTask& task, int query_token, int p) {
  return {keys_in_partition(first_key(task, query_token), p),
          keys_in_partition(visible_keys(task, query_token), p)};
}

inline std::byte* page_block(const KvView& kv, int page) {
  return kv.base + int64_t(kv.page_table[page]) * kv.page_stride;
}
// Offset of a block's values: after head_dim * kPageTokens keys.
inline size_t values_offset_bytes(KvType type, int head_dim) {
  return size_t(head_dim) * kPageTokens * kv_number_bytes(type);
}
// Offset of the scales in a block of integers: after its values.
inline size_t scales_offset_bytes(KvType type, int head_dim) {
  return 2 * values_offset_bytes(type, head_dim);
}

// The largest codes of keys and values in integer pages. Rounding their scale to bf16 can make int16's larger
// by 2^-8: 4095.
inline constexpr int32_t largest_code(KvType type) { return type == KvType::kInt8 ? 127 : 4079; }

// Quantization of numbers with a known largest magnitude to integers of at most `most`: x is round(x *
// inverse) times `scale`. All are 0 if the numbers are tiny, and 0 times NaN if one is not finite.
struct FixedPoint {
  float scale = 0.0f;
  float inverse = 0.0f;
};
inline FixedPoint fixed_point(uint32_t largest_bits, int32_t most) {
  const float largest = std::bit_cast<float>(largest_bits);
  if (largest < kSmallestQuantized) return {};
  if (!(largest <= std::numeric_limits<float>::max())) return {std::numeric_limits<float>::quiet_NaN(), 0.0f};
  return {largest / float(most), float(most) / largest};
}
// The same for keys and values, whose scale is rounded to bf16 first, as it is stored.
inline FixedPoint kv_fixed_point(KvType type, uint32_t largest_bits) {
  FixedPoint fixed = fixed_point(largest_bits, largest_code(type));
  if (fixed.inverse == 0.0f) return fixed;
  fixed.scale = bf16_to_float(float_to_bf16(fixed.scale));
  fixed.inverse = 1.0f / fixed.scale;
  return fixed;
}

// Such keys and values are multiplied with queries and weights that are 16-bit fixed point too. Their scale
// is such that int32 sums can't overflow. Over int8 pages the number of products is small enough for that:
// kPartitionTokens, and head_dim. Over int16 pages the sum of the codes is bounded: it is kLargestSum at most
// but for half a code each and its own rounding. That is 512 times 1016: equal weights of a full partition
// are whole codes.
inline constexpr int32_t kLargestFactor = 32767;
inline constexpr int32_t kLargestSum = 520192;
static_assert(int64_t(kLargestFactor) * largest_code(KvType::kInt8) * kPartitionTokens < int64_t(1) << 31);
static_assert((int64_t(kLargestSum) + 4096) * 4095 < int64_t(1) << 31);

// The factors for `count` numbers with this largest magnitude and, if pages are int16, this sum of
// magnitudes.
inline FixedPoint factors_fixed_point(KvType pages, uint32_t largest_bits, float sum, int count) {
  if (pages == KvType::kInt8) return fixed_point(largest_bits, kLargestFactor / ((count + 511) / 512));
  constexpr float kShare = float(kLargestFactor) / float(kLargestSum);
  const uint32_t least_bits = std::bit_cast<uint32_t>(sum * kShare);
  return fixed_point(largest_bits > least_bits ? largest_bits : least_bits, kLargestFactor);
}

}  // namespace redoubt
