// Which rows a step computes, and which of them are sampled or read. Plain lists; computes nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "step/attention_plan.h"
#include "step/batch.h"

namespace redoubt {

// How many rows a stage has, and how many of them belong to decoding (see LayerRows).
struct RowCounts {
  int32_t all;
  int32_t answers;
};

// The rows of activations that a layer computes: each sequence's last query_lengths[s] tokens. Decoding
// sequences come before those in their prompt, because Bf16Uses::prompts treats them differently.
struct LayerRows {
  Batch batch;  // `tokens` rows; positions and slots are not used
  int32_t answer_rows = 0;
  std::vector<int32_t> first_row;        // of each sequence
  std::vector<int32_t> query_lengths;    // where the batch's point, unless they are the caller's
  std::vector<int32_t> context_lengths;  // likewise
  std::vector<AttentionPlan> attention;  // one for each window and shape of layers that compute these rows

  const AttentionPlan& attention_of(const AttentionConfig& attention) const;
  RowCounts counts() const { return {batch.tokens, answer_rows}; }
};

// A row of logits that is sampled or read.
struct HeadRow {
  int32_t sequence;
  int32_t wanted_row;
  int32_t token_index;  // within its sequence, where a reader gets it; -1: it is sampled
  int32_t guesses;      // number of the sequence's draft tokens before it, if it is sampled
};

// Rows of hidden states for a reader.
struct HiddenRows {
  int32_t sequence;
  int32_t first_wanted_row;
  int32_t first_token_index;  // within its sequence
  int32_t count;
};

class StepPlan {
 public:
  // Asks the readers which rows they want. Writes -1 to all of outputs.sampled. The batch must outlive the
  // plan.
  StepPlan(const Batch& batch, const StepOutputs& outputs, const ModelConfig& config, int32_t threads);
  StepPlan(const StepPlan&) = delete;
  StepPlan& operator=(const StepPlan&) = delete;

  // All tokens of the batch.
  const LayerRows& all() const { return all_; }
  // The rows that are sampled or read. If ends_early(), layers after the last one that stores keys and values
  // compute only these.
  const LayerRows& wanted() const { return wanted_; }
  bool ends_early() const { return ends_early_; }
  // The sequences, those with most tokens first.
  const std::vector<int32_t>& longest_first() const { return longest_first_; }
  int32_t sequence_of(int32_t token) const { return sequence_of_token_[size_t(token)]; }
  int32_t token_of(int32_t wanted_row) const { return wanted_tokens_[size_t(wanted_row)]; }
  // The residual stream's index of a wanted row after the last layer.
  int32_t place_of(int32_t wanted_row) const { return ends_early_ ? wanted_row : token_of(wanted_row); }

  // Empty if the caller gets the logits.
  const std::vector<HeadRow>& head_rows() const { return head_rows_; }
  // The residual stream's indices of the rows whose logits are computed.
  const std::vector<int32_t>& head_places() const { return head_places_; }
  const std::vector<HiddenRows>& hidden_reads() const { return hidden_reads_; }
  // Where a sequence's sampled tokens are written.
  int32_t* sampled_of(int32_t sequence) const { return sampled_of_[size_t(sequence)]; }

 private:
  void list_sequences(const Batch& batch, const StepOutputs& outputs);
  int32_t list_wanted_rows(const Batch& batch, const StepOutputs& outputs, int32_t sequence,
                           int32_t first_token);
  void list_head_places(const Batch& batch, const StepOutputs& outputs);
  // Plans a layer's attention, unless an equal plan exists.
  static void add_attention(LayerRows& rows, const ModelConfig& config, int32_t layer, int32_t threads);

  LayerRows all_;
  LayerRows wanted_;
  bool ends_early_ = false;
  std::vector<int32_t> longest_first_;
  std::vector<int32_t> sequence_of_token_;
  std::vector<int32_t> wanted_tokens_;
  std::vector<HeadRow> head_rows_;
  std::vector<int32_t> head_places_;
  std::vector<HiddenRows> hidden_reads_;
  std::vector<int32_t*> sampled_of_;
};

}  // namespace redoubt
