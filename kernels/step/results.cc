// Samplers and readers (contract: step/results.h).
#include "step/results.h"

#include "sampling/prompt_reader.h"
#include "sampling/sampler.h"

namespace redoubt {

void Results::read_hidden_states() {
  team_.share(int(context_.plan.hidden_reads().size()), [&](Range mine) {
    for (int i = mine.begin; i < mine.end; ++i) read_hidden_rows(context_.plan.hidden_reads()[size_t(i)]);
  });
}

// A reader gets its rows in order, so one thread reads them all.
void Results::read_hidden_rows(const HiddenRows& rows) {
  const Workspace& workspace = context_.workspace;
  float* const normalized = team_.own().rows.data();
  for (int32_t r = 0; r < rows.count; ++r) {
    const int64_t at = context_.plan.place_of(rows.first_wanted_row + r);
    final_norm(context_, context_.hidden() + at * workspace.hidden_stride, normalized);
    context_.outputs.readers[rows.sequence]->read(rows.first_token_index + r, normalized, scorer_);
  }
}

void Results::read_logits(Range rows) {
  team_.share(rows.end - rows.begin, [&](Range mine) {
    for (int i = mine.begin; i < mine.end; ++i) take_row(rows, i);
  });
  team_.finish_stage(Stage::kSample);
}

// Row `index` of those whose logits are there. A sampler goes from row to row, so whoever has its first one
// takes those after its guesses too.
void Results::take_row(Range rows, int index) {
  const HeadRow* const head_rows = context_.plan.head_rows().data() + rows.begin;
  const HeadRow& row = head_rows[index];
  const auto logits_of = [&](int r) {
    return context_.workspace.logits.data() + r * context_.workspace.logits_stride;
  };
  if (row.token_index >= 0) {
    context_.outputs.readers[row.sequence]->read(row.token_index, logits_of(index), scorer_);
    return;
  }
  if (row.guesses > 0 && index > 0) return;
  for (int r = index; r < rows.end - rows.begin && head_rows[r].sequence == row.sequence; ++r) {
    sample_row(head_rows[r], logits_of(r));
  }
}

// Samples unless a guess before the row turned out wrong.
void Results::sample_row(const HeadRow& row, float* logits) {
  int32_t* const sampled = context_.plan.sampled_of(row.sequence) + row.guesses;
  const int32_t token = context_.plan.token_of(row.wanted_row);
  if (row.guesses > 0 && sampled[-1] != context_.batch.token_ids[token]) return;
  *sampled = context_.outputs.samplers[row.sequence]->sample(logits);
}

}  // namespace redoubt
