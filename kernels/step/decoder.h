// One step of a decoder: every thread of the pool runs the same sequence of stages, takes its share of each,
// and meets the others at barriers. This file has only the order of the stages.
#pragma once

#include "step/attention.h"
#include "step/context.h"
#include "step/delta.h"
#include "step/experts.h"
#include "step/feed_forward.h"
#include "step/gated_convolution.h"
#include "step/inputs.h"
#include "step/latent.h"
#include "step/layer_inputs.h"
#include "step/predictor.h"
#include "step/products.h"
#include "step/projections.h"
#include "step/residual.h"
#include "step/results.h"
#include "step/tap.h"
#include "step/team.h"

namespace redoubt {

// One thread's part in a step. It lives on that thread's stack, and nothing in it is shared.
class Decoder {
 public:
  Decoder(const StepContext& context, int thread);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  void run();

 private:
  void embed();
  void run_layer(int layer);
  // A part of an encoder's layer, of the batch's rows.
  void run_part(int layer, LayerPart part);
  // A step that drafts, in the predictor's layer.
  void draft();
  // Stores the predictor's keys of all tokens.
  void store_predictor_keys();
  void run_wanted_rows(int layer, bool stores);
  // Stores all rows' keys and values.
  void key_value(int layer);
  // Attention, or the layer kind that replaces it.
  void attend(int layer, const LayerRows& rows);
  void finish_layer(int layer, const LayerRows& rows);
  void attention_output(int layer, RowCounts rows);
  void gate_up(int layer, RowCounts rows);
  void down(int layer, RowCounts rows);
  // Where attention or an MLP adds its output, or writes it if a norm of it alone follows.
  Target target_of(int layer, const Norm& output_norm) const;
  void run_head();

  const StepContext& context_;
  Team team_;
  Inputs inputs_;
  Products products_;
  Residual residual_;
  Projections projections_;
  Latent latent_;
  Attention attention_;
  Delta delta_;
  GatedConvolution gated_convolution_;
  FeedForward feed_forward_;
  Experts experts_;
  LayerInputs layer_inputs_;
  Results results_;
  Predictor predictor_;
  Tap tap_;
};

// Runs a step on the pool. Rethrows the first exception of any thread: a sampler's or reader's, or
// StepInterrupted. The outputs are then invalid, but the model stays usable.
void run_step(const StepContext& context);

}  // namespace redoubt
