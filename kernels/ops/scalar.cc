// Puts the scalar tier's non-linear kernels in the table. The kernels are beside this file, one family each.
#include "ops/scalar.h"

#include "contract/kernel_table.h"

namespace redoubt::scalar {
namespace {
#include "ops/fill-inl.h"
}  // namespace
}  // namespace redoubt::scalar

namespace redoubt {

void fill_ops_scalar(KernelTable& table) { scalar::fill_ops(table); }

}  // namespace redoubt
