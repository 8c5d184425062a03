// Integer weights times int8 activations with AVX2.
#include <immintrin.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "contract/float_formats.h"
#include "linear/avx2.h"
#include "linear/int8_pass.h"
#include "linear/row_passes.h"
#include "simd/inline.h"
#include "simd/numbers.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace redoubt::avx2 {
namespace {
#include "simd/vector_avx2-inl.h"

#include "linear/int8_chunks-inl.h"
}  // namespace

void linear_int8(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end) {
  multiply_in_chunks(w, x, y, tile_begin, tile_end);
}

}  // namespace redoubt::avx2

#pragma GCC pop_options
