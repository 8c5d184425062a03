// The stages that are only products: query, key and value, the output projection, and the head.
#pragma once

#include <cstdint>

#include "step/inputs.h"
#include "step/products.h"
#include "step/team.h"

namespace redoubt {

class Projections {
 public:
  Projections(const StepContext& context, Team& team, Inputs& inputs, Products& products)
      : context_(context), team_(team), inputs_(inputs), products_(products) {}

  // Computes all rows. The gate of attention's output is computed with the queries.
  void query_key_value(int layer);
  void key_value(int layer);
  // Computes these rows' queries, which the workspace begins with.
  void query(int layer, RowCounts rows);
  // Writes the output projection, or adds it.
  void output(int layer, RowCounts rows, const Target& target);
  // Adds embeddings, from the workspace's branch, to the residual stream, where they have a projection.
  void embedding();
  // Computes the head's inputs from the final norm, into the workspace's branch, where they have a
  // projection.
  void before_head(int32_t rows);
  // Computes logits of some of the plan's head_places. Chunks are counted from 0 and alternate between two
  // claims; the caller comes to a barrier before the next one.
  void head(Range rows, int chunk);

 private:
  // The gate of attention's output, for layers that have one.
  Segment gate(const LayerWeights& weights, const LinearInput& input) const;
  // Rows of the residual stream after the final norm, at some of the plan's head_places.
  LinearInput final_rows(Range rows, const Linear& user);
  void finish_logits(const Target& target, int32_t rows);
  LinearInput normalized(int layer, RowCounts rows, std::initializer_list<const Linear*> users);

  const StepContext& context_;
  Team& team_;
  Inputs& inputs_;
  Products& products_;
};

}  // namespace redoubt
