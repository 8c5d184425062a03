// The scalar tier of the non-linear kernels: it defines every result (contracts: contract/kernel_table.h). It
// is compiled for the baseline and without vectorization.
#pragma once

#include <cstdint>

#include "contract/activation.h"
#include "contract/attention.h"

namespace redoubt {
struct GatedRows;
}

namespace redoubt::scalar {

void rms_norm(const float* x, const float* weight, float epsilon, int n, float* out);
void layer_norm(const float* x, const float* weight, const float* bias, float epsilon, int n, float* out);
template <Activation kActivation>
void activate(const float* gate, const float* up, int n, float* out);
void convolve_gated(const GatedRows& rows);
void add_scaled(const float* x, float factor, int n, float* y);
void scale(float* x, float factor, int n);
void softcap(float* x, float cap, int n);
void gate_by_sigmoid(const float* gate, int n, float* x);
void rope(float* head, const float* cos_sin, int rotary_dim);
void write_kv(const KvView& kv, int32_t token, const float* key, const float* value);
// Writes the key alone, as write_kv stores it and attention reads it.
void write_key(const KvView& kv, int32_t token, const float* key);
void read_key(const KvView& kv, int32_t token, float* key);
void block_maxima(const float* logits, int n, float* maxima);
void softmax_weights(float* logits, int n, float max, float scale, float* sums);

}  // namespace redoubt::scalar
