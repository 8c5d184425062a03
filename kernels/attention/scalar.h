// The scalar tier of attention: it defines every result (contract: contract/kernel_table.h). It is compiled
// for the baseline and without vectorization.
#pragma once

#include <cstddef>
#include <cstdint>

#include "contract/attention.h"

namespace redoubt::scalar {

void attention(const AttentionTask& task, void* scratch);
// The state (contract/attention.h) of one row over `keys` keys from `first` on, in pages of integers.
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

}  // namespace redoubt::scalar
