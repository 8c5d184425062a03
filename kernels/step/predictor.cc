// Multi-token prediction and EAGLE-3 (contract: step/predictor.h).
#include "step/predictor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sampling/sampler.h"
#include "sampling/token_scores.h"

namespace redoubt {
namespace {

// Moves logits of some rising tokens to the places that they have in the vocabulary; all others get
// -infinity.
void spread(const std::vector<int32_t>& tokens, int32_t vocab_size, float* logits) {
  float* end = logits + vocab_size;
  for (size_t i = tokens.size(); i-- > 0;) {
    float* const place = logits + tokens[i];
    const float logit = logits[i];
    std::fill(place + 1, end, -std::numeric_limits<float>::infinity());
    *place = logit;
    end = place;
  }
  if (!tokens.empty()) std::fill(logits, end, -std::numeric_limits<float>::infinity());
}

// The head's row for a token; -1: it has none, so nothing of what it has could be drawn.
int32_t place_in(const std::vector<int32_t>& tokens, int32_t token) {
  if (tokens.empty()) return token;
  const auto at = std::lower_bound(tokens.begin(), tokens.end(), token);
  return at == tokens.end() || *at != token ? -1 : int32_t(at - tokens.begin());
}

}  // namespace

float* Predictor::parts(int64_t r) const {
  return context_.workspace.predictor_parts.data() + r * context_.workspace.predictor_parts_stride;
}

float* Predictor::state(int64_t r) const {
  return context_.workspace.predictor_states.data() + r * context_.workspace.hidden_stride;
}

int32_t Predictor::page_of(int32_t sequence, int32_t position) const {
  const ModelConfig& config = context_.config;
  const int64_t group = context_.kv_cache.groups().of_layer[size_t(config.layers)].group;
  const int64_t row = group * context_.max_sequences + sequence;
  return context_.page_tables[row * context_.pages_per_sequence + position / kPageTokens];
}

void Predictor::take_states(int layers) {
  if (!is_eagle()) return;
  const std::vector<int32_t>& states = context_.config.predictor->states;
  const Workspace& workspace = context_.workspace;
  const int32_t size = context_.config.hidden_size;
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i] != layers) continue;
    team_.share(context_.batch.tokens, [&](Range rows) {
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        std::copy_n(context_.hidden() + r * workspace.hidden_stride, size,
                    workspace.layer_states.data() + r * workspace.layer_states_stride + int64_t(i) * size);
      }
    });
  }
}

void Predictor::take_step() {
  if (is_eagle()) {
    team_.barrier();
    project();
  }
  take_rows();
  keep_last_rows();
  if (!is_eagle()) project();
}

void Predictor::copy_hidden(int64_t r, float* out) const {
  const float* const row = context_.hidden() + r * context_.workspace.hidden_stride;
  if (!is_eagle()) return final_norm(context_, row, out);
  std::copy_n(row, context_.config.hidden_size, out);
}

void Predictor::take_rows() {
  team_.share(context_.batch.tokens, [&](Range rows) {
    for (int32_t r = rows.begin; r < rows.end; ++r) take_row(r);
  });
  team_.barrier();
}

void Predictor::take_row(int32_t r) {
  const int32_t hidden_size = context_.config.hidden_size;
  float* const row = team_.own().rows.data();
  residual_.token_embedding(r, row);
  normalize(context_, weights().embedding_norm, row, parts(r));
  float* const part = parts(r) + hidden_size;
  const int32_t sequence = context_.plan.sequence_of(r);
  if (r > context_.plan.all().first_row[size_t(sequence)]) {
    copy_hidden(r - 1, row);
    return normalize(context_, weights().hidden_norm, row, part);
  }
  const int32_t slot = context_.batch.slots[sequence], context = context_.batch.context_lengths[sequence];
  if (context > 0 && context_.last_hidden.is_of(slot, context, page_of(sequence, context - 1))) {
    return normalize(context_, weights().hidden_norm, context_.last_hidden.row(slot), part);
  }
  std::fill_n(part, hidden_size, 0.0f);
}

int32_t Predictor::right_tokens(int32_t sequence) const {
  const Batch& batch = context_.batch;
  const int32_t drafts = batch.drafts(sequence);
  if (drafts == 0 || context_.outputs.samplers == nullptr) return batch.query_lengths[sequence];
  const int32_t* const sampled = context_.plan.sampled_of(sequence);
  const int32_t wrong = int32_t(std::count(sampled + 1, sampled + 1 + drafts, -1));
  return batch.query_lengths[sequence] - wrong;
}

void Predictor::keep_last_rows() {
  team_.share(context_.batch.sequences, [&](Range sequences) {
    for (int32_t s = sequences.begin; s < sequences.end; ++s) {
      const int32_t right = right_tokens(s), slot = context_.batch.slots[s];
      const int32_t context = context_.batch.context_lengths[s] + right;
      const int64_t last = context_.plan.all().first_row[size_t(s)] + right - 1;
      copy_hidden(last, context_.last_hidden.row(slot));
      context_.last_hidden.keep(slot, context, page_of(s, context - 1), context);
    }
  });
  team_.barrier();
}

void Predictor::take_drafts() {
  const Workspace& workspace = context_.workspace;
  const int32_t size = context_.config.hidden_size;
  team_.share(context_.batch.tokens, [&](Range rows) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      float* const row = context_.hidden() + r * workspace.hidden_stride;
      float* const part = parts(r) + size;
      normalize(context_, weights().embedding_norm, row, parts(r));
      normalize(context_, weights().hidden_norm, state(r), part);
      if (!is_eagle()) continue;
      std::copy_n(context_.config.predictor->normalized_residual ? part : state(r), size, row);
    }
  });
  team_.barrier();
  if (!is_eagle()) project();
}

void Predictor::project() {
  const Workspace& workspace = context_.workspace;
  const Linear& projection = weights().input;
  const Inputs::Source source =
      is_eagle() ? Inputs::Source{workspace.layer_states.data(), workspace.layer_states_stride}
                 : Inputs::Source{workspace.predictor_parts.data(), workspace.predictor_parts_stride};
  const LinearInput input = inputs_.prepare(source, context_.plan.all().counts(), projection.weight.cols,
                                            weights().input_norm, {&projection});
  const Segment segments[] = {{projection, input, {context_.hidden(), workspace.hidden_stride}}};
  products_.run(segments, claim_of(context_.config.layers, Claim::kInputProjection));
  team_.finish_stage(Stage::kEmbed);
}

void Predictor::choose() {
  const Workspace& workspace = context_.workspace;
  const int32_t rows = context_.batch.tokens;
  const bool is_raw = is_eagle() && !context_.config.predictor->normalized_output;
  team_.share(rows, [&](Range mine) {
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      const float* const row = context_.hidden() + r * workspace.hidden_stride;
      if (is_raw) {
        std::copy_n(row, context_.config.hidden_size, state(r));
      } else {
        normalize(context_, weights().output_norm, row, state(r));
      }
    }
  });
  team_.barrier();
  const Linear& head = predictor_head(team_.weights());
  const LinearInput input =
      inputs_.prepare({workspace.predictor_states.data(), workspace.hidden_stride}, {rows, rows},
                      context_.config.hidden_size, is_raw ? weights().output_norm : Norm{}, {&head});
  const Segment segments[] = {{head, input, {workspace.logits.data(), workspace.logits_stride}}};
  products_.run(segments, claim_of(context_.config.layers, Claim::kHeadProjection));
  team_.finish_stage(Stage::kHead);
  team_.share(rows, [&](Range mine) {
    const DraftOutputs& drafts = *context_.drafts;
    const std::vector<int32_t>& tokens = weights().tokens;
    TokenScorer scorer(context_.kernels);
    std::vector<float> own;
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      float* const logits = workspace.logits.data() + r * workspace.logits_stride;
      if (Sampler* const sampler = drafts.samplers[r]; sampler != nullptr) {
        own.assign(logits, logits + head.weight.rows);
        spread(tokens, context_.config.vocab_size, logits);
        drafts.tokens[r] = sampler->sample(logits);
        const int32_t place = place_in(tokens, drafts.tokens[r]);
        drafts.chances[r] =
            place < 0 ? 0.0f
                      : std::exp(scorer.score(own.data(), head.weight.rows, place, 0, nullptr, nullptr));
        continue;
      }
      int32_t best = 0;
      float logprob = 0;
      scorer.score(logits, head.weight.rows, 0, 1, &best, &logprob);
      drafts.tokens[r] = tokens.empty() ? best : tokens[size_t(best)];
      drafts.chances[r] = std::exp(logprob);
    }
  });
  team_.finish_stage(Stage::kSample);
}

}  // namespace redoubt
