// Matrix products of a stage (contract: step/products.h).
#include "step/products.h"

#include <algorithm>

namespace redoubt {

Linear tiles_of(const Linear& linear, Range range) {
  Linear part = linear;
  part.weight.data = linear.weight.tile(range.begin);
  part.weight.rows = std::min(linear.weight.rows, range.end * kTileOutputs) - range.begin * kTileOutputs;
  if (linear.bias != nullptr) part.bias = linear.bias + range.begin * kTileOutputs;
  return part;
}

SharedWork Products::work_of(std::span<const Segment> segments) const {
  const LinearInput& first = segments.front().input;
  SharedWork work{.item_bytes = segments.front().linear.weight.tile_bytes(), .rows_can_be_shared = true};
  for (const Segment& segment : segments) {
    const LinearInput& input = segment.input;
    const Range own = team_.node_tiles(segment.linear.weight);
    work.items += own.end - own.begin;
    work.rows = std::max(work.rows, input.rows());
    work.rounded_rows = std::max(work.rounded_rows, input.rounded.rows);
    work.rows_can_be_shared = work.rows_can_be_shared && input.quantized && input.rows() == first.rows() &&
                              input.rounded.rows == first.rounded.rows;
  }
  return work;
}

void Products::run(std::span<const Segment> segments, int claim) {
  team_.take_ranges(work_of(segments), claim,
                    [&](Range mine, RowPart part) { multiply_range(segments, mine, part); });
}

void Products::multiply_range(std::span<const Segment> segments, Range mine, RowPart part) const {
  int first = 0;
  for (const Segment& segment : segments) {
    const Range own = team_.node_tiles(segment.linear.weight);
    const int count = own.end - own.begin, offset = own.begin - first;
    const Range tiles = intersect(mine, {first, first + count});
    first += count;
    if (tiles.begin >= tiles.end) continue;
    const Range of_matrix{tiles.begin + offset, tiles.end + offset};
    if (part.count == 1) {
      multiply(segment.input, segment.linear, segment.target, of_matrix);
    } else {
      const LinearInput rows = segment.input.part(part);
      Target target = segment.target;
      target.values += rows.first_row * target.stride;
      multiply(rows, segment.linear, target, of_matrix);
    }
  }
}

void Products::multiply(const LinearInput& input, const Linear& linear, const Target& target,
                        Range tiles) const {
  team_.multiply([&] { multiply_tiles(input, linear, target, tiles); });
}

void Products::multiply_tiles(const LinearInput& input, const Linear& linear, const Target& target,
                              Range tiles) const {
  const KernelTable& kernels = context_.kernels;
  LinearOutput output = {.values = target.values,
                         .stride = target.stride,
                         .bias = linear.bias,
                         .accumulate = target.accumulate,
                         .elsewhere = target.elsewhere};
  if (!input.quantized)
    return kernels.linear_fp32(linear.weight, input.floats, output, tiles.begin, tiles.end);
  if (input.quantized_rows > 0) {
    const QuantizedRows& integers = linear.two_terms ? input.two_terms : input.one_term;
    kernels.linear_int8(linear.weight, integers, output, tiles.begin, tiles.end);
  }
  if (input.rounded.rows > 0) {
    output.values += input.quantized_rows * output.stride;
    kernels.linear_bf16(linear.weight, input.rounded, output, tiles.begin, tiles.end);
  }
}

}  // namespace redoubt
