// The MLP of a layer: gate, up and their activation in one stage, then down. The first stage also works on
// parts of any MLP, for experts.
#pragma once

#include <algorithm>
#include <cstdint>

#include "step/inputs.h"
#include "step/products.h"
#include "step/team.h"

namespace redoubt {

// Gate and up are computed in units of whole groups of the next matrix' input.
inline int gate_unit_tiles(const MlpWeights& mlp) {
  return std::max(1, mlp.down.weight.group / kTileOutputs);
}

// The norm before an MLP; without a weight if there is none.
const Norm& mlp_input_norm(const LayerConfig& layer, const LayerWeights& weights);
const Norm& experts_input_norm(const LayerConfig& layer, const LayerWeights& weights);
// The memory that an MLP's first stage reads.
Upcoming upcoming_of_mlp(const Team& team, const LayerWeights& weights, int32_t rows);
// Ends a layer's last stage.
void finish_mlp(const StepContext& context, Team& team, int layer, int32_t rows);

// Gate and up of one MLP for some rows.
struct GateUpStage {
  const MlpWeights& mlp;
  const LinearInput& input;
  const LinearInput& inner;  // of down
  Range tiles;               // of this thread's node
  int unit_tiles;
  bool in_one;    // rounded rows take gate_up_bf16
  float* tapped;  // [rows][inner]: a copy of `inner` in fp32, or null

  int units() const { return (tiles.end - tiles.begin + unit_tiles - 1) / unit_tiles; }
  size_t unit_bytes() const {
    const size_t gate = mlp.gated() ? mlp.gate.weight.tile_bytes() : 0;
    return size_t(unit_tiles) * (gate + mlp.up.weight.tile_bytes());
  }
};

class FeedForward {
 public:
  FeedForward(const StepContext& context, Team& team, Inputs& inputs, Products& products)
      : context_(context), team_(team), inputs_(inputs), products_(products) {}

  // Gate and up for the same columns on the same thread, a chunk at a time, then the activation and
  // quantization of that chunk: what lies between the two stages never leaves the cache, and needs no
  // barrier.
  void gate_up(int layer, RowCounts rows);
  // Writes the MLP's output, or adds it.
  void down(int layer, RowCounts rows, const Target& target);

  GateUpStage stage_of(const MlpWeights& mlp, const LinearInput& input, const LinearInput& inner,
                       float* tapped) const;
  // Computes units of the stage for `rows`, a part of its input, on this thread alone.
  void take_units(const GateUpStage& stage, Range units, const LinearInput& rows);

 private:
  void run_chunk(const GateUpStage& stage, Range tiles, LinearInput rows);
  // Writes the activation of gate and up, which lie in this thread's memory, to the inner input's rows and
  // columns.
  void activate(const GateUpStage& stage, Range rows, int32_t col_begin, int32_t cols);

  const StepContext& context_;
  Team& team_;
  Inputs& inputs_;
  Products& products_;
};

}  // namespace redoubt
