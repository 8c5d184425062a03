// The stages of a layer of gated convolution (LFM2) before its output projection: the product that makes
// gates and values, and the convolution, whose earlier inputs are in state pages.
#pragma once

#include <cstdint>

#include "step/inputs.h"
#include "step/products.h"
#include "step/team.h"

namespace redoubt {

class GatedConvolution {
 public:
  GatedConvolution(const StepContext& context, Team& team, Inputs& inputs, Products& products)
      : context_(context), team_(team), inputs_(inputs), products_(products) {}

  // Computes gates and values of all rows.
  void project(int layer);
  // Leaves the output projection's inputs in the workspace's attention rows.
  void convolve(int layer);

 private:
  void convolve_channels(int layer, int32_t sequence, Range channels);

  const StepContext& context_;
  Team& team_;
  Inputs& inputs_;
  Products& products_;
};

}  // namespace redoubt
