// The AVX2 tier of the linear kernels: the table's entries.
#include "linear/avx2.h"

#include "contract/kernel_table.h"

namespace redoubt {

void fill_linear_avx2(KernelTable& table) {
  table.quantize_rows = avx2::quantize_rows;
  table.linear_int8 = avx2::linear_int8;
  table.linear_fp32 = avx2::linear_fp32;
  table.dequantize_row = avx2::dequantize_row;
}

}  // namespace redoubt
