// The scalar tier of the non-linear kernels: it defines every result (contracts: contract/kernel_table.h). It
// is compiled for the baseline and without vectorization.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "contract/kernel_table.h"
#include "simd/numbers.h"

namespace redoubt::scalar {

void rms_norm(const float* x, const float* weight, float epsilon, int n, float* out);
void silu_mul(const float* gate, const float* up, int n, float* out);
void rope(float* head, const float* cos_sin, int rotary_dim);
void write_kv(const KvView& kv, int32_t token, const float* key, const float* value);
// The key alone: as write_kv stores it, and as attention reads it.
void write_key(const KvView& kv, int32_t token, const float* key);
void read_key(const KvView& kv, int32_t token, float* key);
void attention(const AttentionTask& task, void* scratch);
// The state (simd/numbers.h) of one row over `keys` keys from `first` on, in pages of integers.
void attention_row_fixed(const KvView& kv, const float* query, float scale_log2e, int first, int keys,
                         float* state);
// The same with bf16 products, in bf16 and int8 pages.
void attention_row_bf16(const KvView& kv, const float* query, float scale_log2e, int first, int keys,
                        float* state);
void attention_bf16(const AttentionTask& task, void* scratch);
void attention_bf16_partition(const AttentionTask& task, int p, float* states, void* scratch);
void attention_partition(const AttentionTask& task, int p, float* states, void* scratch);
void attention_merge(const AttentionTask& task, const float* states, int count);
size_t attention_scratch_bytes(const AttentionTask& task);
void block_maxima(const float* logits, int n, float* maxima);
void softmax_weights(float* logits, int n, float max, float scale, float* sums);

// 2^n times the polynomial of f, where biased = n + kRoundMagic.
template <const auto& kCoefficients = kExp2>
inline float exp2_of_parts(float f, float biased) {
  constexpr size_t kTerms = sizeof kCoefficients / sizeof kCoefficients[0];
  float poly = kCoefficients[kTerms - 1];
  for (size_t i = kTerms - 1; i > 0; --i) poly = std::fma(poly, f, kCoefficients[i - 1]);
  poly = std::fma(poly, f, 1.0f);
  return poly * std::bit_cast<float>(std::bit_cast<uint32_t>(biased) << 23);
}

// 2^x for x <= 0; 0 below `smallest`; NaN stays NaN.
template <const auto& kCoefficients = kExp2>
inline float exp2_nonpositive(float x, float smallest = kExp2Smallest) {
  if (x < smallest) return 0.0f;
  const float biased = x + kRoundMagic;
  return exp2_of_parts<kCoefficients>(x - (biased - kRoundMagic), biased);
}

template <int kLanes>
inline float sum_lanes(float (&lanes)[kLanes]) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

}  // namespace redoubt::scalar
