// Query, key, value, output and head (contract: step/projections.h).
#include "step/projections.h"

#include <span>

#include "step/feed_forward.h"

namespace redoubt {
namespace {

// Query, key and value, as far as a layer has them: never one without those before it.
int matrices_of(const LayerWeights& weights) {
  return weights.value.weight.data != nullptr ? 3 : weights.key.weight.data != nullptr ? 2 : 1;
}
const Linear& key_of(const LayerWeights& weights) {
  return matrices_of(weights) >= 2 ? weights.key : weights.query;
}
const Linear& value_of(const LayerWeights& weights) {
  return matrices_of(weights) >= 3 ? weights.value : key_of(weights);
}

}  // namespace

LinearInput Projections::normalized(int layer, RowCounts rows, std::initializer_list<const Linear*> users) {
  const Workspace& workspace = context_.workspace;
  if (const int32_t cols = context_.config.attention_inputs(layer); cols > context_.config.hidden_size) {
    return inputs_.prepare({workspace.predictor_parts.data(), workspace.predictor_parts_stride}, rows, cols,
                           Norm{}, users);
  }
  return inputs_.prepare({context_.hidden(), workspace.hidden_stride}, rows, context_.config.hidden_size,
                         team_.weights().layers[size_t(layer)].attention_norm, users);
}

void Projections::query_key_value(int layer) {
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  const LinearInput input =
      normalized(layer, context_.plan.all().counts(), {&weights.query, &key_of(weights), &value_of(weights)});
  const HeadShape& shape = context_.config.shape(layer);
  const int64_t stride = context_.workspace.qkv_stride;
  float* const query = context_.workspace.qkv.data();
  float* const key = query + shape.query_dim();
  float* const value = key + shape.kv_dim();
  const Segment segments[] = {{weights.query, input, {query, stride}},
                              {weights.key, input, {key, stride}},
                              {weights.value, input, {value, stride}},
                              gate(weights, input)};
  const bool has_gate = weights.gate.weight.data != nullptr;  // then there are all others
  products_.run(std::span(segments).first(has_gate ? 4 : size_t(matrices_of(weights))),
                claim_of(layer, Claim::kQkv));
  team_.finish_stage(Stage::kQkv, team_.upcoming(context_.batch.tokens, {&weights.output.weight}));
}

Segment Projections::gate(const LayerWeights& weights, const LinearInput& input) const {
  return {weights.gate, input, {context_.workspace.gates.data(), context_.workspace.gates_stride}};
}

void Projections::key_value(int layer) {
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  const LinearInput input =
      normalized(layer, context_.plan.all().counts(), {&key_of(weights), &value_of(weights)});
  const HeadShape& shape = context_.config.shape(layer);
  const int64_t stride = context_.workspace.qkv_stride;
  float* const key = context_.workspace.qkv.data() + shape.query_dim();
  float* const value = key + shape.kv_dim();
  const Segment segments[] = {{weights.key, input, {key, stride}}, {weights.value, input, {value, stride}}};
  products_.run(std::span(segments).first(size_t(matrices_of(weights)) - 1), claim_of(layer, Claim::kQkv));
  team_.finish_stage(Stage::kQkv);
}

void Projections::query(int layer, RowCounts rows) {
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  const LinearInput input = normalized(layer, rows, {&weights.query});
  const Segment segments[] = {
      {weights.query, input, {context_.workspace.qkv.data(), context_.workspace.qkv_stride}},
      gate(weights, input)};
  products_.run(std::span(segments).first(weights.gate.weight.data == nullptr ? 1 : 2),
                claim_of(layer, Claim::kQueries));
  team_.finish_stage(Stage::kQkv);
}

void Projections::output(int layer, RowCounts rows, const Target& target) {
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  const Workspace& workspace = context_.workspace;
  const Inputs::Source source = weights.latent
                                    ? Inputs::Source{workspace.head_parts.data(), workspace.head_parts_stride}
                                    : Inputs::Source{workspace.attention.data(), workspace.attention_stride};
  const LinearInput input =
      inputs_.prepare(source, rows, weights.output.weight.cols, Norm{}, {&weights.output});
  const Segment segments[] = {{weights.output, input, target}};
  products_.run(segments, claim_of(layer, Claim::kOutput));
  team_.finish_stage(Stage::kOutput, upcoming_of_mlp(team_, weights, rows.all));
}

void Projections::embedding() {
  const Linear& projection = team_.weights().embedding_projection;
  const Workspace& workspace = context_.workspace;
  const LinearInput input =
      inputs_.prepare({workspace.branch.data(), workspace.hidden_stride}, context_.plan.all().counts(),
                      context_.config.embedding_size, Norm{}, {&projection});
  const bool adds = context_.config.learned_positions;
  const Segment segments[] = {
      {projection, input, {context_.hidden(), workspace.hidden_stride, /*accumulate=*/adds}}};
  products_.run(segments, claim_of(0, Claim::kInputProjection));
  team_.finish_stage(Stage::kEmbed);
}

void Projections::before_head(int32_t rows) {
  const Linear& projection = team_.weights().head_projection;
  const Workspace& workspace = context_.workspace;
  const LinearInput input = final_rows({0, rows}, projection);
  const Segment segments[] = {{projection, input, {workspace.branch.data(), workspace.hidden_stride}}};
  products_.run(segments, claim_of(0, Claim::kHeadProjection));
  team_.finish_stage(Stage::kHead);
}

LinearInput Projections::final_rows(Range rows, const Linear& user) {
  const Workspace& workspace = context_.workspace;
  const int32_t count = rows.end - rows.begin;
  return inputs_.prepare(
      {context_.hidden(), workspace.hidden_stride, context_.plan.head_places().data() + rows.begin},
      {count, count}, context_.config.hidden_size, team_.weights().final_norm, {&user});
}

void Projections::head(Range rows, int chunk) {
  const ModelWeights& weights = team_.weights();
  const Workspace& workspace = context_.workspace;
  const int32_t count = rows.end - rows.begin, embedding_size = context_.config.embedding_size;
  const float* const projected = workspace.branch.data() + rows.begin * workspace.hidden_stride;
  const LinearInput input = embedding_size == 0
                                ? final_rows(rows, weights.head)
                                : inputs_.prepare({projected, workspace.hidden_stride}, {count, count},
                                                  embedding_size, Norm{}, {&weights.head});
  float* const logits = context_.outputs.logits;
  const Target target = logits != nullptr ? Target{logits, context_.config.vocab_size}
                                          : Target{workspace.logits.data(), workspace.logits_stride};
  const Segment segments[] = {{weights.head, input, target}};
  products_.run(segments, head_claim(context_.config.computed_layers(), chunk));
  if (context_.config.logit_scale != 1.0f || context_.config.logit_softcap != 0.0f) {
    team_.barrier();
    finish_logits(target, count);
  }
  team_.finish_stage(Stage::kHead);
  team_.renew_claim(head_claim(context_.config.computed_layers(), chunk + 1));
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
