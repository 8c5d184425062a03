// The contract of every kernel, and the table through which the model calls them.
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

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "contract/activation.h"

namespace redoubt {

// Arguments of the kernels: contract/packed_matrix.h, linear.h, attention.h and rounding.h.
struct PackedMatrix;
struct QuantizedRows;
struct Bf16Rows;
struct FloatRows;
struct LinearOutput;
struct GateUp;
struct KvView;
struct AttentionTask;
struct GroupRounding;
struct GroupDescent;
struct DeltaConvolution;
struct GatedRows;
struct DeltaPage;

enum class Tier : uint8_t { kScalar, kAvx2, kAvxVnni, kAvx512, kAvx512Vnni, kAmxInt8 };

// Logits per block for maxima and sums.
inline constexpr int kLogitBlock = 128;

using ActivateRow = void(const float* gate, const float* up, int n, float* out);

struct KernelTable {
  Tier tier;

  // Quantizes x, whole groups, to the terms of `out`, into its rows from `row` and its columns from `col` on.
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
  // f = kBf16WeightFactor, d and m clamped (linear.h), and every operation in fp16, rounded to nearest even,
  // a weight is bf16's number of the bits of
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
  // Computes linear_bf16 of gate and up, activate[kSilu] and round_rows for all rows of x, into the rows of
  // `out`, which has blocks as x has, from its column `col` on.
  void (*gate_up_bf16)(const GateUp& layer, const Bf16Rows& x, const Bf16Rows& out, int col);
  // The same as linear_bf16 for fp32 activations and any weight type, one input after the other: acc =
  // fma(x[k], float(w[n][k]), acc), k ascending, where an integer weight is dequantized first (sym: d * (q -
  // 8); asym: fma(d, q, m); int8: d * (u - 128); lut4: d * table[q]).
  void (*linear_fp32)(const PackedMatrix& w, const FloatRows& x, const LinearOutput& y, int tile_begin,
                      int tile_end);
  // Row n of W in fp32, for embedding look-ups and tests.
  void (*dequantize_row)(const PackedMatrix& w, int32_t row, float* out);

  // out[i] = x[i] * (1 / sqrt(mean(x^2) + epsilon)) * weight[i]
  void (*rms_norm)(const float* x, const float* weight, float epsilon, int n, float* out);
  // With d[i] = x[i] - mean(x): out[i] = d[i] * (1 / sqrt(mean(d^2) + epsilon)) * weight[i] + bias[i]. bias
  // may be null.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float epsilon, int n,
                     float* out);
  // By Activation: out[i] = f(gate[i]) * up[i], or f(gate[i]) if up is null. out may be gate or up.
  ActivateRow* activate[kActivations];
  // y[i] = fma(factor, x[i], y[i])
  void (*add_scaled)(const float* x, float factor, int n, float* y);
  // x[i] = x[i] * factor
  void (*scale)(float* x, float factor, int n);
  // x[i] = cap * tanh(x[i] / cap)
  void (*softcap)(float* x, float cap, int n);
  // Rotates one head in place: pairs (i, i + rotary_dim / 2), i < rotary_dim / 2 (the Hugging Face "rotate
  // half" order). cos_sin: rotary_dim / 2 cosines, then as many sines.
  void (*rope)(float* head, const float* cos_sin, int rotary_dim);
  // Stores one token's key and value (head_dim floats each) at position `token` of the view, rounded to
  // nearest even. Other threads may be storing other tokens of the same page.
  void (*write_kv)(const KvView& kv, int32_t token, const float* key, const float* value);
  // Attention of a whole task. scratch: attention_scratch_bytes(task) bytes, 64-byte aligned.
  void (*attention)(const AttentionTask& task, void* scratch);
  // Partition p alone (keys p * kPartitionTokens ...), its states into `states`; then the merge of `count`
  // partitions from first_partition(task) on (laid out [count][query_tokens * group_heads][head_dim + 2]) and
  // of the sinks into task.output. attention() equals the two, bit for bit.
  void (*attention_partition)(const AttentionTask& task, int p, float* states, void* scratch);
  void (*attention_merge)(const AttentionTask& task, const float* states, int count);
  size_t (*attention_scratch_bytes)(const AttentionTask& task);
  // The same with products of bf16 numbers (attention/bf16_scalar.cc), where can_attend_in_bf16.
  // attention_merge is common to both. The scalar kernel's in every tier but AMX's.
  void (*attention_bf16)(const AttentionTask& task, void* scratch);
  void (*attention_bf16_partition)(const AttentionTask& task, int p, float* states, void* scratch);
  size_t (*attention_bf16_scratch_bytes)(const AttentionTask& task);

  // x[i] = x[i] / (1 + e^-gate[i])
  void (*gate_by_sigmoid)(const float* gate, int n, float* x);

  // The convolution of contract/convolution.h; each product is added with one rounding.
  void (*convolve_gated)(const GatedRows& rows);
  // Gated DeltaNet (contract/delta.h). Each row becomes silu(y) with y[c] = the sum over taps, oldest row
  // first, of weight times row.
  void (*convolve_silu)(const DeltaConvolution& convolution);
  // x[i] = x[i] * (factor / sqrt(sum of x^2 + kL2Epsilon))
  void (*l2_normalize)(float* x, float factor, int n);
  // Computes some tokens of a page, in delta/scalar.cc's order. scratch: delta_scratch_floats, 64-byte
  // aligned.
  void (*delta_page)(const DeltaPage& page, float* scratch);

  // For sampling, over blocks of kLogitBlock logits (the last may be shorter).
  // maxima[b] = the largest of block b, ignoring NaN; -infinity if nothing else is there.
  void (*block_maxima)(const float* logits, int n, float* maxima);
  // logits[i] = 2^((logits[i] - max) * scale), or 0 where that is NaN or below 2^-125; sums[b] = the sum of
  // block b.
  void (*softmax_weights)(float* logits, int n, float max, float scale, float* sums);

  // For conversion (rounding.h). Rounds a group's inputs with each candidate's scale and minimum, one input
  // after the other: with moved = wanted[k] + the sum over i < k, ascending, of feedback[k][i] * errors[i],
  // input k gets the code of moved, and adds power[k] * (moved - value)^2 to the candidate's error.
  void (*round_group)(const GroupRounding& task);
  // Sets each input in turn to its best code while the others stay: that of its value + pull[k] / own[k][k].
  // The change updates the pull on later inputs.
  void (*descend_group)(const GroupDescent& task);
};

// Fillers, one per tier and family; each overwrites the entries it does better. Defined beside the kernels.
void fill_linear_scalar(KernelTable& table);
void fill_linear_avx2(KernelTable& table);
void fill_linear_avx_vnni(KernelTable& table);
void fill_linear_avx512(KernelTable& table);
void fill_linear_avx512_vnni(KernelTable& table);
void fill_linear_amx_int8(KernelTable& table);
void fill_linear_amx_bf16(KernelTable& table);
void fill_ops_scalar(KernelTable& table);  // norms, activations, rope, kv, logits
void fill_ops_avx2(KernelTable& table);
void fill_ops_avx512(KernelTable& table);
void fill_attention_scalar(KernelTable& table);
void fill_attention_avx2(KernelTable& table);
void fill_attention_avx512(KernelTable& table);
void fill_attention_avx512_vnni(KernelTable& table);
void fill_attention_amx_bf16(KernelTable& table);
void fill_rounding_scalar(KernelTable& table);
void fill_rounding_avx2(KernelTable& table);
void fill_rounding_avx512(KernelTable& table);
void fill_delta_scalar(KernelTable& table);
void fill_delta_avx2(KernelTable& table);
void fill_delta_avx512(KernelTable& table);

// The table for a tier. Throws std::invalid_argument if this machine (CPU and OS) does not grant the tier.
const KernelTable& kernel_table(Tier tier);
// The best tier granted, or the one REDOUBT_ISA names ("scalar", "avx2", "avx_vnni", "avx512", "avx512_vnni",
// "amx_int8"); an unknown or missing tier there throws std::invalid_argument naming it.
Tier default_tier();
const char* tier_name(Tier tier);
// The inverse; throws std::invalid_argument for a name that no tier has.
Tier tier_from_name(std::string_view name);
// The tiers that this CPU and OS grant, lowest first.
std::vector<Tier> available_tiers();

}  // namespace redoubt
