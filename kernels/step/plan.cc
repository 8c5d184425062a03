// Lists a step's rows (contract: step/plan.h).
#include "step/plan.h"

#include <algorithm>
#include <numeric>

#include "sampling/prompt_reader.h"

namespace redoubt {
namespace {

bool is_plan_of(const AttentionPlan& plan, const AttentionConfig& attention) {
  return plan.window == attention.window && plan.ahead == attention.ahead() && plan.shape == attention.shape;
}

}  // namespace

StepPlan::StepPlan(const Batch& batch, const StepOutputs& outputs, const ModelConfig& config,
                   int32_t threads) {
  list_sequences(batch, outputs);
  all_.batch = wanted_.batch = batch;
  wanted_.batch.tokens = int32_t(wanted_tokens_.size());
  if (batch.prompts == 0) {
    all_.answer_rows = batch.tokens;
    wanted_.answer_rows = wanted_.batch.tokens;
  }
  wanted_.batch.query_lengths = wanted_.query_lengths.data();
  wanted_.batch.context_lengths = wanted_.context_lengths.data();
  longest_first_.resize(size_t(batch.sequences));
  std::iota(longest_first_.begin(), longest_first_.end(), 0);
  std::stable_sort(longest_first_.begin(), longest_first_.end(), [&batch](int32_t a, int32_t b) {
    return batch.query_lengths[a] > batch.query_lengths[b];
  });
  // For a state every row is needed, and for the predictor's keys.
  ends_early_ = !config.layer(config.layers - 1).keeps_state() && !config.encoder && !config.predictor &&
                outputs.logits == nullptr && outputs.hidden_states == nullptr && outputs.tap == nullptr &&
                wanted_.batch.tokens < batch.tokens;
  list_head_places(batch, outputs);
  const int32_t first_of_wanted = ends_early_ ? config.last_storing_layer() : config.computed_layers();
  for (int32_t layer = 0; layer < config.computed_layers(); ++layer) {
    add_attention(layer < first_of_wanted ? all_ : wanted_, config, layer, threads);
  }
}

void StepPlan::add_attention(LayerRows& rows, const ModelConfig& config, int32_t layer, int32_t threads) {
  if (config.layer(layer).keeps_state()) return;
  const AttentionConfig& wanted = config.layer(layer).attention;
  const auto is_for = [&](const AttentionPlan& plan) { return is_plan_of(plan, wanted); };
  if (std::any_of(rows.attention.begin(), rows.attention.end(), is_for)) return;
  rows.attention.push_back(plan_attention(rows.batch, config, layer, threads));
}

const AttentionPlan& LayerRows::attention_of(const AttentionConfig& wanted) const {
  return *std::find_if(attention.begin(), attention.end(),
                       [&](const AttentionPlan& plan) { return is_plan_of(plan, wanted); });
}

void StepPlan::list_sequences(const Batch& batch, const StepOutputs& outputs) {
  int32_t* place = outputs.sampled;
  for (int32_t sequence = 0; sequence < batch.sequences; ++sequence) {
    const int32_t queries = batch.query_lengths[sequence], first_token = int32_t(sequence_of_token_.size());
    if (sequence == batch.answers()) {
      all_.answer_rows = first_token;
      wanted_.answer_rows = int32_t(wanted_tokens_.size());
    }
    all_.first_row.push_back(first_token);
    wanted_.first_row.push_back(int32_t(wanted_tokens_.size()));
    const int32_t wanted = list_wanted_rows(batch, outputs, sequence, first_token);
    wanted_.query_lengths.push_back(wanted);
    wanted_.context_lengths.push_back(batch.context_lengths[sequence] + queries - wanted);
    sequence_of_token_.insert(sequence_of_token_.end(), size_t(queries), sequence);
    if (outputs.samplers == nullptr) continue;
    sampled_of_.push_back(place);
    for (int32_t i = 0; i <= batch.drafts(sequence); ++i) *place++ = -1;
  }
}

// Lists which of a sequence's last rows are wanted after the last layer, and for what; returns how many.
int32_t StepPlan::list_wanted_rows(const Batch& batch, const StepOutputs& outputs, int32_t sequence,
                                   int32_t first_token) {
  const int32_t queries = batch.query_lengths[sequence], context = batch.context_lengths[sequence];
  const bool samples = outputs.samplers != nullptr && outputs.samplers[sequence] != nullptr;
  const PromptReader* reader = outputs.readers != nullptr ? outputs.readers[sequence] : nullptr;
  const int32_t read = reader != nullptr ? std::clamp(reader->rows_wanted(context, queries), 0, queries) : 0;
  const int32_t sampled_rows = samples ? 1 + batch.drafts(sequence) : 0;
  const int32_t count = std::max(sampled_rows, read), first_row = int32_t(wanted_tokens_.size());
  for (int32_t i = 0; i < count; ++i) {
    const int32_t query = queries - count + i;
    wanted_tokens_.push_back(first_token + query);
    const int32_t guesses = i - (count - sampled_rows);
    const bool sampled = samples && guesses >= 0;
    if (sampled || (reader != nullptr && reader->reads_logits())) {
      head_rows_.push_back({sequence, first_row + i, sampled ? -1 : context + query, guesses});
    }
  }
  if (read > 0 && !reader->reads_logits()) {
    hidden_reads_.push_back({sequence, first_row + count - read, context + queries - read, read});
  }
  return count;
}

void StepPlan::list_head_places(const Batch& batch, const StepOutputs& outputs) {
  for (const HeadRow& row : head_rows_) head_places_.push_back(place_of(row.wanted_row));
  if (outputs.logits == nullptr) return;
  for (int32_t token = 0; token < batch.tokens; ++token) head_places_.push_back(token);
}

}  // namespace redoubt
