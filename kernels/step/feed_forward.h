// The MLP of a layer: gate, up and their activation in one stage, then down.
#pragma once

#include <algorithm>
#include <cstdint>

#include "step/inputs.h"
#include "step/products.h"
#include "step/team.h"

namespace redoubt {

// Gate and up are computed in units of whole groups of the next matrix' input.
inline int gate_unit_tiles(const LayerWeights& weights) {
  return std::max(1, weights.down.weight.group / kTileOutputs);
}

class FeedForward {
 public:
  FeedForward(const StepContext& context, Team& team, Inputs& inputs, Products& products)
      : context_(context), team_(team), inputs_(inputs), products_(products) {}

  // Gate and up for the same columns on the same thread, a chunk at a time, then SiLU and quantization of
  // that chunk: what lies between the two stages never leaves the cache, and needs no barrier.
  void gate_up(int layer, RowCounts rows);
  // Adds the MLP's output to the residual stream.
  void down(int layer, RowCounts rows);

 private:
  struct GateUpStage {
    const LayerWeights& weights;
    const LinearInput& input;
    const LinearInput& inner;  // of down
    Range tiles;               // of this thread's node
    int unit_tiles;
    bool in_one;  // rounded rows take gate_up_bf16
  };

  bool gates_in_one(const GateUpStage& stage) const;
  void take_units(const GateUpStage& stage, Range units, const LinearInput& rows);
  void run_chunk(const GateUpStage& stage, Range tiles, LinearInput rows);
  // SiLU of gate times up, which lie in this thread's memory, as the inner input's rows and columns.
  void activate(const LinearInput& inner, Range rows, int32_t col_begin, int32_t cols);

  const StepContext& context_;
  Team& team_;
  Inputs& inputs_;
  Products& products_;
};

}  // namespace redoubt
