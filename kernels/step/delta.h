// The stages of a layer of Gated DeltaNet before its output projection (formulas: contract/delta.h):
// products, the convolution of queries, keys and values, and the recurrence of each value head, which reads
// and writes state pages.
#pragma once

#include <cstdint>
#include <vector>

#include "step/inputs.h"
#include "step/products.h"
#include "step/team.h"

namespace redoubt {

class Delta {
 public:
  Delta(const StepContext& context, Team& team, Inputs& inputs, Products& products)
      : context_(context), team_(team), inputs_(inputs), products_(products) {}

  // Computes queries, keys, values, the output's gate, betas and decays of all rows.
  void project(int layer);
  // Convolves in place: leaves convolved values and normalized queries and keys.
  void convolve(int layer);
  // Leaves the output projection's inputs in the workspace's attention rows.
  void run_heads(int layer);

 private:
  // A sequence's rows in the step, and its state pages.
  struct Sequence {
    int32_t first_row;
    int32_t begin;  // position of the first row
    int32_t end;
    const int32_t* pages;

    int32_t page(int32_t index) const { return pages[index]; }
  };
  // Memory of one task (Workspace's delta_floats).
  struct Scratch;

  void score(int layer, const FloatRows& rows);
  void convolve_head(int layer, const Sequence& sequence, int head);
  void store_keys(int layer, const Sequence& sequence, int key_head);
  void run_head(int layer, const Sequence& sequence, int value_head);
  // Betas, and decays in the page's form, of tokens [begin, end), counted from the page's start.
  void fill_factors(int layer, int64_t first_row, int value_head, Range tokens, float* betas,
                    float* decays) const;
  void finish_rows(int layer, int64_t first_row, int32_t rows, int value_head);

  Sequence sequence_of(int32_t index) const;
  int32_t slot_of(int layer) const { return context_.kv_cache.groups().of_layer[size_t(layer)].slot; }
  const DeltaConfig& config_of(int layer) const { return *context_.config.layer(layer).delta; }
  float* qkv_row(int64_t row) const;

  const StepContext& context_;
  Team& team_;
  Inputs& inputs_;
  Products& products_;
};

}  // namespace redoubt
