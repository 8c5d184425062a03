// Inputs of layers beside the residual stream. A token has one for each layer, made of a row of an embedding
// and a projection of the token's embedding; a layer multiplies it with a gate and adds a projection of that.
#pragma once

#include "step/inputs.h"
#include "step/products.h"
#include "step/residual.h"
#include "step/team.h"

namespace redoubt {

class LayerInputs {
 public:
  LayerInputs(const StepContext& context, Team& team, Inputs& inputs, Products& products, Residual& residual)
      : context_(context), team_(team), inputs_(inputs), products_(products), residual_(residual) {}

  // Computes all layers' inputs of all rows, while the residual stream has the tokens' embeddings.
  void embed();
  // With x the residual stream: x += norm(output(activation(gate(x)) * input)), times the layer's scale.
  void add(int layer, RowCounts rows);

 private:
  void finish_row(int64_t row) const;

  const StepContext& context_;
  Team& team_;
  Inputs& inputs_;
  Products& products_;
  Residual& residual_;
};

}  // namespace redoubt
