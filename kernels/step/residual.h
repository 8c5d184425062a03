// The residual stream: the row of activations of each token that every layer adds to.
#pragma once

#include "step/team.h"

namespace redoubt {

class Residual {
 public:
  Residual(const StepContext& context, Team& team) : context_(context), team_(team) {}

  // Fills it with the tokens' embeddings, and computes the angles of their positions. Where a projection
  // follows, the embeddings are in the workspace's branch, and what the projection adds to is here.
  void embed();
  // The embedding of row r's token, for models without projections of it and learned positions.
  void token_embedding(int32_t r, float* out) const;
  // Adds the workspace's branch rows after a norm, multiplies the sum, and comes to a barrier.
  void add_normalized(const Norm& norm, int32_t rows, float scale = 1.0f);
  // Replaces each row by its norm, and comes to a barrier.
  void normalize_rows(const Norm& norm, int32_t rows);
  // Sets the branch to the sum of itself and the experts' branch, each after its norm, and comes to a
  // barrier.
  void join_experts(const Norm& norm, const Norm& experts_norm, int32_t rows);
  // Moves the wanted rows, their angles and their layers' inputs to the front.
  void keep_wanted_rows();
  // Copies it for the caller, if hidden states are wanted: as the input of layer `index`, or the last layer's
  // output.
  void copy_hidden(int index);
  // Copies it after the final norm, likewise.
  void copy_final_norm();

 private:
  void embed_row(int32_t r) const;
  void add_type(int32_t type, float* out) const;
  // A row of a matrix that the nodes have in parts.
  void read_row(PackedMatrix ModelWeights::* matrix, int32_t row, float* out) const;
  void fill_angles(int32_t r) const;
  float* row(int64_t r) const;
  // Where row r of hidden states is written for the caller.
  float* output_row(int index, int64_t r) const;

  const StepContext& context_;
  Team& team_;
};

}  // namespace redoubt
