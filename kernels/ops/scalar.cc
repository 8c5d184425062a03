// Puts the scalar tier's non-linear kernels in the table. The kernels are beside this file, one family each.
#include "ops/scalar.h"

#include "contract/kernel_table.h"

namespace redoubt {

void fill_ops_scalar(KernelTable& table) {
  table.rms_norm = scalar::rms_norm;
  table.silu_mul = scalar::silu_mul;
  table.rope = scalar::rope;
  table.write_kv = scalar::write_kv;
  table.block_maxima = scalar::block_maxima;
  table.softmax_weights = scalar::softmax_weights;
}

}  // namespace redoubt
