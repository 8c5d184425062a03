// Products of rows with the matrices of a stage: which thread multiplies which tiles of which matrix. Knows
// neither what the matrices are nor where they belong in a layer.
#pragma once

#include <cstdint>
#include <span>

#include "model/weights.h"
#include "step/inputs.h"
#include "step/team.h"

namespace redoubt {

// The destination of a product: row r at values + r * stride.
struct Target {
  float* values;
  int64_t stride;
  bool accumulate = false;
  bool elsewhere = true;  // as in LinearOutput
};

// One matrix of a stage: y = x W^T + bias.
struct Segment {
  const Linear& linear;
  const LinearInput& input;
  Target target;
};

// Tiles [range.begin, range.end) of a layer as a layer of its own, so that its outputs start at column 0.
Linear tiles_of(const Linear& linear, Range range);

class Products {
 public:
  Products(const StepContext& context, Team& team) : context_(context), team_(team) {}

  // Computes this thread's part of all segments, whose tiles are counted through and divided as one.
  void run(std::span<const Segment> segments, int claim);
  // Multiplies tiles of one matrix, on this thread alone.
  void multiply(const LinearInput& input, const Linear& linear, const Target& target, Range tiles) const;

 private:
  SharedWork work_of(std::span<const Segment> segments) const;
  // Multiplies the part of the segments' tiles in `mine`, on this thread's node.
  void multiply_range(std::span<const Segment> segments, Range mine, RowPart part) const;
  void multiply_tiles(const LinearInput& input, const Linear& linear, const Target& target,
                      Range tiles) const;

  const StepContext& context_;
  Team& team_;
};

}  // namespace redoubt
