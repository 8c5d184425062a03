// Loops over all rows, for kernels that compute a few rows of a tile at a time. Knows no instruction set.
#pragma once

#include "contract/linear.h"
#include "machine/shares.h"

namespace redoubt {

// Calls pass(begin, end) for all rows in order, in nearly equal parts of at most `most` rows.
template <typename Function>
[[gnu::always_inline]] inline void in_passes(int rows, int most, const Function& pass) {
  const int passes = shares_of_at_most(rows, most);
  for (int i = 0; i < passes; ++i) {
    const Range range = share(rows, i, passes);
    pass(range.begin, range.end);
  }
}

// Multiplies a tile with a fixed number of rows from `row` on.
template <typename InputRows>
using TileKernel = void (*)(const PackedMatrix&, const InputRows&, const LinearOutput&, int tile, int row);

// Multiplies tiles [tile_begin, tile_end) with all rows, in passes of at most `most` rows. All passes of a
// tile follow each other, so that later ones find it in the second-level cache. kernels: indexed by the
// number of rows minus one.
template <typename InputRows>
void multiply_in_passes(const TileKernel<InputRows>* kernels, int most, const PackedMatrix& w,
                        const InputRows& x, const LinearOutput& y, int tile_begin, int tile_end) {
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    in_passes(x.rows, most, [&](int begin, int end) { kernels[end - begin - 1](w, x, y, tile, begin); });
  }
}

// The kernels of one type of integer weights, indexed by the number of rows minus one: for one term, and for
// two, which count as two rows.
template <int kPassRows>
struct TermKernels {
  TileKernel<QuantizedRows> one_term[kPassRows];
  TileKernel<QuantizedRows> two_terms[kPassRows / 2];
};

template <int kPassRows>
void multiply_in_passes(const TermKernels<kPassRows>& kernels, const PackedMatrix& w, const QuantizedRows& x,
                        const LinearOutput& y, int tile_begin, int tile_end) {
  if (x.low_values != nullptr) {
    multiply_in_passes(kernels.two_terms, kPassRows / 2, w, x, y, tile_begin, tile_end);
  } else {
    multiply_in_passes(kernels.one_term, kPassRows, w, x, y, tile_begin, tile_end);
  }
}

}  // namespace redoubt
