// Latent attention (LatentConfig) before and after the attention of its one key and value head: queries in
// the latent's space, the latent itself, and each head's projection back.
#pragma once

#include <cstdint>
#include <vector>

#include "step/inputs.h"
#include "step/products.h"
#include "step/team.h"

namespace redoubt {

class Latent {
 public:
  Latent(const StepContext& context, Team& team, Inputs& inputs, Products& products)
      : context_(context), team_(team), inputs_(inputs), products_(products) {}

  bool is_in(int layer) const { return team_.weights().layers[size_t(layer)].latent.has_value(); }

  // Writes the workspace's qkv, not yet rotated, for all rows.
  void query_key_value(int layer);
  void key_value(int layer);
  // Does so for the wanted rows' queries.
  void query(int layer);
  // Projects the heads' attended latents back, into the workspace's head_parts.
  void values(int layer, RowCounts rows);

 private:
  // Every head's part of some rows, and the target of its product.
  struct Heads {
    const std::vector<Linear>& matrices;
    const float* source;  // head h's inputs of row r: source + r * source_stride + h * source_cols
    int64_t source_stride;
    int32_t source_cols;
    float* target;  // likewise
    int64_t target_stride;
    int32_t target_cols;
  };

  const LatentConfig& config(int layer) const;
  const LatentWeights& weights(int layer) const { return *team_.weights().layers[size_t(layer)].latent; }
  LinearInput layer_input(int layer, RowCounts rows, std::initializer_list<const Linear*> users);
  Segment first_query(int layer, const LinearInput& input) const;
  Segment key_value_segment(int layer, const LinearInput& input) const;
  // Normalizes the latents, and writes the values: zeros where keys have their rotary part.
  void finish_key_values(int layer);
  // Projects the results of first_query to the latent's space.
  void finish_queries(int layer, RowCounts rows);
  void tap_query_input(int layer, RowCounts rows);
  void tap_heads(const Heads& heads, int32_t cols, float* to);
  // Copies the heads' rotary parts to where queries are.
  void copy_rotary_parts(int layer, int32_t rows);
  // Computes one product per head.
  void multiply_heads(const Heads& heads, RowCounts rows, int claim);
  LinearInput input_of_head(const Heads& heads, RowCounts rows, int32_t head) const;

  const StepContext& context_;
  Team& team_;
  Inputs& inputs_;
  Products& products_;
};

}  // namespace redoubt
