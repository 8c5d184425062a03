// The AVX-512 VNNI tier of the linear kernels: the table's entries.
#include "linear/avx512.h"

#include "contract/kernel_table.h"

namespace redoubt {

void fill_linear_avx512_vnni(KernelTable& table) {
  table.quantize_rows = avx512_vnni::quantize_rows;
  table.linear_int8 = avx512_vnni::linear_int8;
  table.linear_fp32 = avx512_vnni::linear_fp32;
}

}  // namespace redoubt
