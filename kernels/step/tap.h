// Copies a layer's activations, for calibration (LayerTap, step/batch.h). Without a tap nothing is copied.
#pragma once

#include <cstdint>

#include "step/team.h"

namespace redoubt {

// Where the tap wants an activation of this layer, or null.
template <typename T>
T* tapped(const StepContext& context, int layer, T* LayerTap::* wanted) {
  const LayerTap* const tap = context.outputs.tap;
  return tap == nullptr || layer + 1 < context.config.layers ? nullptr : tap->*wanted;
}

// Whether a place of a layer is computed: with a tap, the step ends after the last wanted one.
inline bool goes_on(const StepContext& context, int layer, TapPlace place) {
  const LayerTap* const tap = context.outputs.tap;
  return tap == nullptr || layer + 1 < context.config.layers || tap->last() >= place;
}

// Every thread calls these at the place that the name says, after a barrier. Those that copy end with a
// barrier, so that the next stage may overwrite the rows.
class Tap {
 public:
  Tap(const StepContext& context, Team& team) : context_(context), team_(team) {}

  void attention_input(int layer);
  void output_input(int layer);
  void attention_output(int layer);
  void mlp_input(int layer);
  void experts_input(int layer);
  void mlp_output(int layer);
  void hidden(int layer);

 private:
  void copy_rows(const float* from, int64_t stride, int32_t cols, float* to);
  void copy_hidden_rows(const float* from, float* to);
  void normalize_rows(const Norm& norm, float* to);
  // Where attention or an MLP with that norm has written.
  const float* written(int layer, const Norm& output_norm) const;

  const StepContext& context_;
  Team& team_;
};

}  // namespace redoubt
