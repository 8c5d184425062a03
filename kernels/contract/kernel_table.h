// The contract of every kernel, and the table through which the model reaches them.
//
// The scalar tier fills the whole table and defines every result; each higher tier overwrites what it does
// better. A kernel does no allocation, takes no lock, starts no thread and knows nothing of layers or
// requests: it works on the range it is given, so the caller decides how work is split.
//
// Invariance: a row's result depends on that row's input alone, never on how many rows, sequences or threads
// share the call. Linear kernels therefore add groups in ascending k into one fp32 accumulator per output, in
// exactly the order written below, in every tier and at every batch size; attention does the same over blocks
// of keys. A request gives the same tokens alone, batched, chunked or after preemption.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "contract/packed_matrix.h"

namespace redoubt {

enum class Tier : uint8_t { kScalar, kAvx2, kAvxVnni, kAvx512Vnni, kAmxInt8 };

// Activations quantized by group, as every linear kernel of integer weights takes them: x = d * n, where the
// integer n is one int8 term or two:
//   one:  n = q            d = max|x| / 127     n = round_to_nearest_even(x * (127 / max|x|))
//   two:  n = 256 q + l    d = max|x| / 32512   n = round_to_nearest_even(x * (32512 / max|x|)),
//         q in -127 .. 127, l in -128 .. 127
// Two cost up to twice the multiplications, but no more reading of weights, and leave no more of the rounding
// than a 256th. All is 0 where max|x| < kSmallestQuantized, so that neither quotient leaves the normal range.
// The sum s of a group's n is kept in the two forms that the kernels take it in.
inline constexpr float kSmallestQuantized = 0x1p-100f;
struct QuantizedRows {
  int8_t* values = nullptr;      // [rows][cols], q
  int8_t* low_values = nullptr;  // [rows][cols], l; null: one term
  float* scales = nullptr;       // [rows][cols / group], d
  int32_t* starts = nullptr;     // [rows][cols / group], -8 s: sym_int4's zero point in the sum of products
  float* offsets = nullptr;      // [rows][cols / group], float(s) * d: what multiplies asym_int4's minimum
  int32_t rows = 0;
  int32_t cols = 0;
  int32_t group = 0;

  // n, at an index into the values.
  int32_t integer(int64_t at) const {
    return low_values == nullptr ? values[at] : 256 * values[at] + low_values[at];
  }
  // Rows [begin, end) alone.
  QuantizedRows part(int32_t begin, int32_t end) const {
    const int64_t value = int64_t(begin) * cols, of_group = int64_t(begin) * (cols / group);
    return {.values = values + value,
            .low_values = low_values == nullptr ? nullptr : low_values + value,
            .scales = scales + of_group,
            .starts = starts + of_group,
            .offsets = offsets + of_group,
            .rows = end - begin,
            .cols = cols,
            .group = group};
  }
};

// Activations as AMX's tiles take them: x * kBf16InputFactor, no further from 0 than kLargestBf16, rounded to
// bf16 (to nearest even). Of each eight inputs the even ones come first. Rows lie in
// blocks of one height, at most 16; the last block may have fewer rows, and what is there in their place is
// never looked at.
struct Bf16Rows {
  uint16_t* values = nullptr;  // [blocks][cols / kStepInputs][height][kStepInputs]
  int32_t rows = 0;
  int32_t cols = 0;    // a multiple of kStepInputs
  int32_t height = 1;  // of a block

  static constexpr int kStepInputs = 32;
  static constexpr int kMostHeight = 16;

  Bf16Rows() = default;
  Bf16Rows(uint16_t* values, int32_t rows, int32_t cols) : values(values), rows(rows), cols(cols) {
    const int32_t count = std::max(1, (rows + kMostHeight - 1) / kMostHeight);
    height = std::max(1, (rows + count - 1) / count);
  }

  int32_t blocks() const { return (rows + height - 1) / height; }
  // The rows of blocks [begin, end) alone, in blocks of the same height.
  Bf16Rows part(int32_t begin, int32_t end) const {
    Bf16Rows result = *this;
    result.values = step(begin, 0);
    result.rows = std::min(rows, end * height) - begin * height;
    return result;
  }
  // The inputs of a block's rows from kStepInputs * step on.
  uint16_t* step(int32_t block, int32_t step) const {
    return values + (int64_t(block) * (cols / kStepInputs) + step) * height * kStepInputs;
  }
  // The inputs of one row there.
  uint16_t* row(int32_t row, int32_t step) const {
    return this->step(row / height, step) + row % height * kStepInputs;
  }
  // Values that so many rows, or fewer, take.
  static constexpr int64_t size(int64_t rows, int64_t cols) {
    return (rows + (rows + kMostHeight - 1) / kMostHeight) * cols;
  }
};

// linear_bf16 has a weight w as the bf16 number whose bits are those of fp16(f w), but for the last three of
// the mantissa, which are cut off: fp16's exponent in bf16's place stands for 2^-112 of it. So activations
// are multiplied by 2^112 / f, and by what the mean number, whose mantissa is 1 / ln 2, is to what cutting
// leaves of it: 7 / 16 of a last bit less. f is no power of two, so that scales of few bits don't stay such:
// the last bits of their products would not have that mean.
inline constexpr float kBf16WeightFactor = 32.0625f;
inline constexpr float kBf16InputFactor = 0x1p112f / kBf16WeightFactor * (1.0f + 0x7p-11f * 0.6931472f);
inline constexpr float kLargestBf16 = 0x1.fep127f;

// Scales and minima further from 0 are taken for these, fp16's bits, so that no weight becomes infinite:
// 255.375 times a code of -8 .. 7; of lut4 and int8, 15.9921875 times -127 .. 127; of asym_int4, 63.96875
// times -8 .. 7, and 511.75.
inline constexpr uint16_t largest_bf16_scale(WeightType type) {
  return type == WeightType::kSymInt4 ? 0x5bfb : type == WeightType::kAsymInt4 ? 0x53ff : 0x4bff;
}
inline constexpr uint16_t kLargestBf16Minimum = 0x5fff;

struct FloatRows {
  const float* values = nullptr;  // [rows], `stride` floats apart
  int64_t stride = 0;
  int32_t rows = 0;
  int32_t cols = 0;
};

// Where a linear kernel writes: y[r][n] = acc, plus bias[n] where there is one, plus y's old value if
// `accumulate` (linear_bf16 begins with these two). Padded outputs (n >= w.rows) are never written.
struct LinearOutput {
  float* values = nullptr;  // [rows], `stride` floats apart
  int64_t stride = 0;
  const float* bias = nullptr;  // [w.rows] or null
  bool accumulate = false;
  bool elsewhere = false;  // another core may have y's cache lines: worth asking for them early
};

// Gate and up of an MLP, of one type, group and shape without padded outputs. gates, ups: where their
// products may be kept meanwhile, and their biases; accumulate is false.
struct GateUp {
  PackedMatrix gate;
  PackedMatrix up;
  LinearOutput gates;
  LinearOutput ups;
};

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
// x is not finite. int16 has 12 bits and a sign, so that sums of products fit 32 bits (simd/numbers.h): pages
// of bf16's size, more exact, and with VNNI multiplied twice as fast.
inline constexpr int kPageTokens = 32;
// Attention takes partitions of this many keys separately (all scores, then one softmax, then the values) and
// merges them in ascending order, whoever computes them: long contexts can be split over threads and still
// give the same bits.
inline constexpr int kPartitionTokens = 512;

inline constexpr size_t kv_number_bytes(KvType type) {
  return type == KvType::kFp32 ? 4 : type == KvType::kInt8 ? 1 : 2;
}
inline constexpr size_t kv_block_bytes(KvType type, int head_dim) {
  const size_t values = size_t(2) * head_dim * kPageTokens * kv_number_bytes(type);
  return values + (is_fixed_point(type) ? 4 * kPageTokens : 0);
}

inline constexpr int kLogitBlock = 128;

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

// Some pages of it.
struct KvPages {
  KvView kv;
  int32_t first = 0;
  int32_t count = 0;
};

// Attention of one kv head's query group. Query token i (0 <= i < query_tokens) sees keys 0 .. context_before
// + i.
struct AttentionTask {
  const float* queries = nullptr;  // token i, head h of the group: queries + i * token_stride + h * head_dim
  float* output = nullptr;         // same shape and strides as queries, may not alias them
  int64_t query_token_stride = 0;
  int64_t output_token_stride = 0;
  int32_t query_tokens = 0;
  int32_t group_heads = 0;
  int32_t context_before = 0;
  float scale = 1.0f;
  KvView kv;
  KvPages upcoming;  // whose keys are asked for towards the end: what the thread attends to next, if anything
};

// The state of one partition for one (query token, head): maximum, sum, and unnormalized output[head_dim].
// Partial states are laid out [query_tokens * group_heads][head_dim + 2]: max, sum, output.
struct KernelTable {
  Tier tier;

  // Quantizes x, whole groups, to the terms that `out` has, into its rows from `row` and its columns from
  // `col` on.
  void (*quantize_rows)(const FloatRows& x, const QuantizedRows& out, int row, int col);

  // Output tiles [tile_begin, tile_end) of y = x W^T, for integer weights. x.group == w.group. Per output and
  // group j, with dot_j the integer sum of code * n:
  //   sym_int4:  acc = fma(float(dot_j + start_j) * d_x, d_w, acc)
  //   int8:      acc = fma(float(dot_j + 16 * start_j) * d_x, d_w, acc)
  //   lut4:      the same, where a code is table[q] + 128
  //   asym_int4: acc = fma(float(dot_j) * d_x, d_w, acc); acc = fma(offset_j, m_w, acc)
  void (*linear_int8)(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                      int tile_end);
  // Scales and rounds x, whole steps of 32 inputs, into `out`'s rows from `row` and its columns from `col`
  // on.
  void (*round_rows)(const FloatRows& x, const Bf16Rows& out, int row, int col);
  // Output tiles [tile_begin, tile_end) of y = x W^T for integer weights. With s = f d, t = f m,
  // f = kBf16WeightFactor, d and m clamped as above, and every operation in fp16, rounded to nearest even, a
  // weight is bf16's number of the bits of
  //   sym_int4: s * (q - 8)    lut4: s * table[q]    asym_int4: fma(s, q - 8, fma(s, 8, t))
  //   int8: s * (u - 128)
  // moved right by three bits, with the sign in its place. acc is y's old value if
  // y.accumulate, else 0, plus the bias; then for each 32 inputs in ascending order, pairs p of theirs in the
  // order of x (Intel SDM volume 2, "TDPBF16PS"),
  //   even = fma(w[2p], x[2p], even), odd = fma(w[2p + 1], x[2p + 1], odd), both from 0
  //   acc = acc + (even + odd)
  // in fp32 to nearest even, with 0 for every subnormal number. The scalar kernel's in every tier but AMX's.
  void (*linear_bf16)(const PackedMatrix& w, const Bf16Rows& x, const LinearOutput& y, int tile_begin,
                      int tile_end);
  // What linear_bf16 of gate and up, silu_mul and round_rows give, for all rows of x: the rows of `out`,
  // which has blocks as x has, from its column `col` on.
  void (*gate_up_bf16)(const GateUp& layer, const Bf16Rows& x, const Bf16Rows& out, int col);
  // The same as linear_bf16 for fp32 activations and any weight type, one input after the other: acc =
  // fma(x[k], float(w[n][k]), acc), k ascending, where an integer weight is dequantized first (sym: d * (q -
  // 8); asym: fma(d, q, m); int8: d * (u - 128); lut4: d * table[q]).
  void (*linear_fp32)(const PackedMatrix& w, const FloatRows& x, const LinearOutput& y, int tile_begin,
                      int tile_end);
  // Row n of W in fp32: the embedding look-up, and the tests' view of a weight.
  void (*dequantize_row)(const PackedMatrix& w, int32_t row, float* out);

  // out[i] = x[i] * (1 / sqrt(mean(x^2) + epsilon)) * weight[i]
  void (*rms_norm)(const float* x, const float* weight, float epsilon, int n, float* out);
  // out[i] = silu(gate[i]) * up[i]
  void (*silu_mul)(const float* gate, const float* up, int n, float* out);
  // Rotates one head in place: pairs (i, i + rotary_dim / 2), i < rotary_dim / 2 (the Hugging Face "rotate
  // half" order). cos_sin: rotary_dim / 2 cosines, then as many sines.
  void (*rope)(float* head, const float* cos_sin, int rotary_dim);
  // Stores one token's key and value (head_dim floats each) at position `token` of the view, rounded to
  // nearest even. Other threads may be storing other tokens of the same page.
  void (*write_kv)(const KvView& kv, int32_t token, const float* key, const float* value);
  // Whole attention of a task. scratch: attention_scratch_bytes(task) bytes, 64-byte aligned.
  void (*attention)(const AttentionTask& task, void* scratch);
  // Partition p alone (keys p * kPartitionTokens ...), its states into `states`; then the merge of partitions
  // 0 .. count (laid out [count][query_tokens * group_heads][head_dim + 2]) into task.output. attention()
  // equals the two, bit for bit.
  void (*attention_partition)(const AttentionTask& task, int p, float* states, void* scratch);
  void (*attention_merge)(const AttentionTask& task, const float* states, int count);
  size_t (*attention_scratch_bytes)(const AttentionTask& task);
  // The same with products of bf16 numbers (attention/bf16_scalar.cc), where can_attend_in_bf16.
  // attention_merge is common to both. The scalar kernel's in every tier but AMX's.
  void (*attention_bf16)(const AttentionTask& task, void* scratch);
  void (*attention_bf16_partition)(const AttentionTask& task, int p, float* states, void* scratch);
  size_t (*attention_bf16_scratch_bytes)(const AttentionTask& task);

  // For sampling, over blocks of kLogitBlock logits (the last may be shorter).
  // maxima[b] = the largest of block b; NaN is ignored; -infinity where nothing else is there.
  void (*block_maxima)(const float* logits, int n, float* maxima);
  // logits[i] = 2^((logits[i] - max) * scale), or 0 where that is NaN or below 2^-125; sums[b] = the sum of
  // block b.
  void (*softmax_weights)(float* logits, int n, float max, float scale, float* sums);
};

// Fillers, one per tier and family; each overwrites the entries it does better. Defined beside the kernels.
void fill_linear_scalar(KernelTable& table);
void fill_linear_avx2(KernelTable& table);
void fill_linear_avx_vnni(KernelTable& table);
void fill_linear_avx_vnni_evex(KernelTable& table);
void fill_linear_avx512_vnni(KernelTable& table);
void fill_linear_avx512_vnni_other(KernelTable& table);
void fill_linear_amx_int8(KernelTable& table);
void fill_linear_amx_int8_emulated(KernelTable& table);
void fill_linear_amx_bf16(KernelTable& table);
void fill_linear_amx_bf16_emulated(KernelTable& table);
void fill_attention_amx_bf16(KernelTable& table);
void fill_attention_amx_bf16_emulated(KernelTable& table);
void fill_ops_scalar(KernelTable& table);  // norm, silu, rope, kv, attention, logits
void fill_ops_avx2(KernelTable& table);
void fill_ops_avx512(KernelTable& table);

// The table for a tier. Throws std::invalid_argument if this machine (CPU and OS) does not grant the tier.
const KernelTable& kernel_table(Tier tier);
// amx_int8's with its tile registers emulated, for tests: no tier, so neither listed nor chosen. Throws
// std::invalid_argument without avx512_vnni, which it is built on.
const KernelTable& emulated_amx_table();
// avx_vnni's in the encoding of AVX-512, for tests on processors that have that one only. The same in all
// else.
const KernelTable& evex_avx_vnni_table();
// avx512_vnni with int8 activations multiplied as on processors of another maker, for tests and measurements.
// Throws as emulated_amx_table does.
const KernelTable& other_avx512_vnni_table();
// The best tier granted, or the one REDOUBT_ISA names ("scalar", "avx2", "avx_vnni", "avx512_vnni",
// "amx_int8"); an unknown or missing tier there throws std::invalid_argument naming it.
Tier default_tier();
const char* tier_name(Tier tier);
// The inverse; throws std::invalid_argument for a name that no tier has.
Tier tier_from_name(std::string_view name);
// What this CPU and OS grant, lowest first.
std::vector<Tier> available_tiers();

}  // namespace redoubt
