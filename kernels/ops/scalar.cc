// Puts the scalar tier's non-linear kernels in the table. The kernels are beside this file, one family each.
#include "ops/scalar.h"

namespace redoubt {

void fill_ops_scalar(KernelTable& table) {
  table.rms_norm = scalar::rms_norm;
  table.silu_mul = scalar::silu_mul;
  table.rope = scalar::rope;
  table.write_kv = scalar::write_kv;
  table.attention = scalar::attention;
  table.attention_partition = scalar::attention_partition;
  table.attention_merge = scalar::attention_merge;
  table.attention_scratch_bytes = scalar::attention_scratch_bytes;
  table.attention_bf16 = scalar::attention_bf16;
  table.attention_bf16_partition = scalar::attention_bf16_partition;
  table.attention_bf16_scratch_bytes = scalar::attention_scratch_bytes;
  table.block_maxima = scalar::block_maxima;
  table.softmax_weights = scalar::softmax_weights;
}

}  // namespace redoubt
