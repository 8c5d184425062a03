// Query, key, value, output and head (contract: step/projections.h).
#include "step/projections.h"

#include "step/feed_forward.h"

namespace redoubt {

LinearInput Projections::normalized(int layer, RowCounts rows, std::initializer_list<const Linear*> users) {
  const Workspace& workspace = context_.workspace;
  return inputs_.prepare({workspace.hidden.data(), workspace.hidden_stride}, rows,
                         context_.config.hidden_size, team_.weights().layers[size_t(layer)].attention_norm,
                         users);
}

void Projections::query_key_value(int layer) {
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  const LinearInput input =
      normalized(layer, context_.plan.all().counts(), {&weights.query, &weights.key, &weights.value});
  const int64_t stride = context_.workspace.qkv_stride;
  float* const query = context_.workspace.qkv.data();
  float* const key = query + context_.config.query_dim();
  float* const value = key + context_.config.kv_dim();
  const Segment segments[] = {{weights.query, input, {query, stride}},
                              {weights.key, input, {key, stride}},
                              {weights.value, input, {value, stride}}};
  products_.run(segments, claim_of(layer, Claim::kQkv));
  team_.finish_stage(Stage::kQkv, team_.upcoming(context_.batch.tokens, {&weights.output.weight}));
}

void Projections::key_value(int layer) {
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  const LinearInput input = normalized(layer, context_.plan.all().counts(), {&weights.key, &weights.value});
  const int64_t stride = context_.workspace.qkv_stride;
  float* const key = context_.workspace.qkv.data() + context_.config.query_dim();
  float* const value = key + context_.config.kv_dim();
  const Segment segments[] = {{weights.key, input, {key, stride}}, {weights.value, input, {value, stride}}};
  products_.run(segments, claim_of(layer, Claim::kQkv));
  team_.finish_stage(Stage::kQkv);
}

void Projections::query(int layer) {
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  const LinearInput input = normalized(layer, context_.plan.wanted().counts(), {&weights.query});
  const Segment segments[] = {
      {weights.query, input, {context_.workspace.qkv.data(), context_.workspace.qkv_stride}}};
  products_.run(segments, claim_of(layer, Claim::kQueries));
  team_.finish_stage(Stage::kQkv);
}

void Projections::output(int layer, RowCounts rows, const Target& target) {
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  const Workspace& workspace = context_.workspace;
  const LinearInput input = inputs_.prepare({workspace.attention.data(), workspace.attention_stride}, rows,
                                            context_.config.query_dim(), Norm{}, {&weights.output});
  const Segment segments[] = {{weights.output, input, target}};
  products_.run(segments, claim_of(layer, Claim::kOutput));
  team_.finish_stage(Stage::kOutput, upcoming_of_mlp(team_, weights, rows.all));
}

void Projections::head(Range rows, int chunk) {
  const ModelWeights& weights = team_.weights();
  const Workspace& workspace = context_.workspace;
  const int32_t count = rows.end - rows.begin;
  const LinearInput input = inputs_.prepare(
      {workspace.hidden.data(), workspace.hidden_stride, context_.plan.head_places().data() + rows.begin},
      {count, count}, context_.config.hidden_size, weights.final_norm, {&weights.head});
  float* const logits = context_.outputs.logits;
  const Target target = logits != nullptr ? Target{logits, context_.config.vocab_size}
                                          : Target{workspace.logits.data(), workspace.logits_stride};
  const Segment segments[] = {{weights.head, input, target}};
  products_.run(segments, head_claim(context_.config.layers, chunk));
  if (context_.config.logit_scale != 1.0f || context_.config.logit_softcap != 0.0f) {
    team_.barrier();
    finish_logits(target, count);
  }
  team_.finish_stage(Stage::kHead);
  team_.renew_claim(head_claim(context_.config.layers, chunk + 1));
}

// Each thread has some columns of all rows.
void Projections::finish_logits(const Target& target, int32_t rows) {
  const ModelConfig& config = context_.config;
  team_.share(config.vocab_size, [&](Range cols) {
    for (int64_t r = 0; r < rows; ++r) {
      float* const logits = target.values + r * target.stride + cols.begin;
      const int count = cols.end - cols.begin;
      if (config.logit_scale != 1.0f) context_.kernels.scale(logits, config.logit_scale, count);
      if (config.logit_softcap != 0.0f) context_.kernels.softcap(logits, config.logit_softcap, count);
    }
  });
}

}  // namespace redoubt
