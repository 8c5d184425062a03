// The scalar tier of the choice of codes: it defines every result.
#include <cstdint>

#include "contract/kernel_table.h"
#include "contract/rounding.h"
#include "simd/inline.h"

namespace redoubt::scalar {
namespace {
#include "rounding/lanes-inl.h"
}  // namespace
}  // namespace redoubt::scalar

namespace redoubt {

void fill_rounding_scalar(KernelTable& table) {
  table.round_group = scalar::round_group;
  table.descend_group = scalar::descend_group;
}

}  // namespace redoubt
