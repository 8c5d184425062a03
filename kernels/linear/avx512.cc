// The AVX-512 tiers of the linear kernels: the tables' entries.
#include "linear/avx512.h"

#include "contract/kernel_table.h"
#include "linear/avx512_vnni.h"

namespace redoubt {

void fill_linear_avx512(KernelTable& table) {
  table.quantize_rows = avx512::quantize_rows;
  table.linear_int8 = avx512::linear_int8;
  table.linear_fp32 = avx512::linear_fp32;
}

void fill_linear_avx512_vnni(KernelTable& table) { table.linear_int8 = avx512_vnni::linear_int8; }

}  // namespace redoubt
