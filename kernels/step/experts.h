// The experts of a layer: a router chooses some for each row, and each computes its rows alone. A row's
// result is the sum over its experts in rising order, so it does not depend on the other rows.
#pragma once

#include <cstdint>
#include <vector>

#include "step/feed_forward.h"
#include "step/inputs.h"
#include "step/products.h"
#include "step/routing.h"
#include "step/team.h"

namespace redoubt {

class Experts {
 public:
  Experts(const StepContext& context, Team& team, Inputs& inputs, Products& products,
          FeedForward& feed_forward)
      : context_(context), team_(team), inputs_(inputs), products_(products), feed_forward_(feed_forward) {}

  // Chooses the rows' experts, and computes gate, up and the activation of each for its rows.
  void gate_up(int layer, RowCounts rows);
  // Writes the sum of the experts' outputs, or adds it.
  void down(int layer, RowCounts rows, const Target& target);

 private:
  // An expert with its rows; or the shared MLP, which gets all rows in order.
  struct Part {
    const MlpWeights* mlp;
    LinearInput input;
    LinearInput inner;
    int32_t first_pair;  // -1: the shared MLP
  };

  // The router's input.
  FloatRows normalized(int layer, RowCounts rows);
  // The experts' input: the router's, or the residual stream after another norm.
  LinearInput prepared(int layer, RowCounts rows, const FloatRows& scored,
                       std::initializer_list<const Linear*> users);
  void score(int layer, const FloatRows& rows);
  void choose(int layer, RowCounts rows, const FloatRows& normalized);
  void choose_for(int layer, Range rows, const FloatRows& normalized);
  // Lists the parts that gate_up and down process, in rising order of experts, the shared MLP last.
  void list_parts(int layer, RowCounts rows, const LinearInput& natural);
  LinearInput rows_of(const ExpertShare& share, const InputRows& memory, const LinearInput& whole,
                      int64_t first_rounded) const;
  // Copies input rows from their own order into the experts'.
  void copy_rows(const LinearInput& natural, Range pairs) const;
  void tap_pairs(int layer) const;
  float* tapped_of(int layer, const Part& part) const;
  void take_gate_up(int layer, RowCounts rows);
  void add_rows(const Part& part, Range tiles, const Target& target) const;
  float factor_of(const Part& part, int32_t row) const;

  // Whether rows are so few that every thread sorts them for itself.
  bool is_private(int32_t rows) const { return rows <= kPrivateRows; }
  ExpertsWorkspace& memory(int32_t rows) const;

  const StepContext& context_;
  Team& team_;
  Inputs& inputs_;
  Products& products_;
  FeedForward& feed_forward_;
  std::vector<Part> parts_;
  ExpertsWorkspace* chosen_ = nullptr;
};

}  // namespace redoubt
