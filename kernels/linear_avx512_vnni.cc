// The AVX-512 VNNI tier of the linear kernels: which kernel serves how many rows, and the table.
#include "linear_avx512_vnni.h"

#include <algorithm>

namespace redoubt::avx512_vnni {
namespace {

// Rows from which unpacking a panel once is faster than unpacking in registers (bench/kernels.py measures
// both sides).
constexpr int kPanelRows = 12;

void linear_int8(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end, void* scratch) {
  if (x.rows < kPanelRows) {
    linear_int8_fused(w, x, y, tile_begin, tile_end);
  } else {
    linear_int8_panels(w, x, y, tile_begin, tile_end, scratch);
  }
}

size_t linear_scratch_bytes(const PackedMatrix&, int rows) { return linear_int8_panel_scratch_bytes(rows); }

}  // namespace
}  // namespace redoubt::avx512_vnni

namespace redoubt {

void fill_linear_avx512_vnni(KernelTable& table) {
  table.linear_int8 = avx512_vnni::linear_int8;
  table.linear_scratch_bytes = avx512_vnni::linear_scratch_bytes;
}

}  // namespace redoubt
