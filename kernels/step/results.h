// A step's results besides logits and hidden states: tokens from samplers, and rows for readers.
#pragma once

#include <cstdint>

#include "sampling/token_scores.h"
#include "step/team.h"

namespace redoubt {

class Results {
 public:
  Results(const StepContext& context, Team& team)
      : context_(context), team_(team), scorer_(context.kernels) {}

  // Passes rows to the readers of hidden states. Call it after the last layer.
  void read_hidden_states();
  // Samples or reads some of the plan's head_rows, whose logits have been computed.
  void read_logits(Range rows);

 private:
  void read_hidden_rows(const HiddenRows& rows);
  void take_row(Range rows, int index);
  void sample_row(const HeadRow& row, float* logits);

  const StepContext& context_;
  Team& team_;
  TokenScorer scorer_;
};

}  // namespace redoubt
