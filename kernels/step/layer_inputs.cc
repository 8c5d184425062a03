// Layers' own inputs (contract: step/layer_inputs.h).
#include "step/layer_inputs.h"

#include <algorithm>

#include "contract/attention.h"

namespace redoubt {

void LayerInputs::embed() {
  const Workspace& workspace = context_.workspace;
  const Linear& projection = team_.weights().input_projection;
  const LinearInput input =
      inputs_.prepare({context_.hidden(), workspace.hidden_stride}, context_.plan.all().counts(),
                      context_.config.hidden_size, Norm{}, {&projection});
  const Segment segments[] = {
      {projection, input, {workspace.layer_inputs.data(), workspace.layer_inputs_stride}}};
  products_.run(segments, claim_of(0, Claim::kInputProjection));
  team_.barrier();
  team_.share(context_.batch.tokens, [&](Range rows) {
    for (int64_t row = rows.begin; row < rows.end; ++row) finish_row(row);
  });
  team_.finish_stage(Stage::kEmbed);
}

void LayerInputs::finish_row(int64_t row) const {
  const ModelConfig& config = context_.config;
  const int32_t size = config.layer_inputs->size, token = context_.batch.token_ids[row];
  const int32_t tiles = context_.weights.front().input_embedding.tiles();
  const ModelWeights& owner = context_.weights[size_t(context_.nodes.owner_of(token / kTileOutputs, tiles))];
  float* const embedded = team_.own().rows.data();
  context_.kernels.dequantize_row(owner.input_embedding, token, embedded);
  float* const inputs = context_.workspace.layer_inputs.data() + row * context_.workspace.layer_inputs_stride;
  float normalized[kMaxHeadDim];
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    float* const input = inputs + int64_t(layer) * size;
    context_.kernels.rms_norm(input, team_.weights().input_norm, config.norm_epsilon, size, normalized);
    std::copy_n(normalized, size, input);
    context_.kernels.add_scaled(embedded + int64_t(layer) * size, config.layer_inputs->embedding_scale, size,
                                input);
  }
}

void LayerInputs::add(int layer, RowCounts rows) {
  const Workspace& workspace = context_.workspace;
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  const LayerInputsConfig& config = *context_.config.layer_inputs;
  const LinearInput input = inputs_.prepare({context_.hidden(), workspace.hidden_stride}, rows,
                                            context_.config.hidden_size, Norm{}, {&weights.input_gate});
  float* const gates = workspace.input_gate.data();
  const int64_t stride = workspace.input_gate_stride;
  const Segment gate[] = {{weights.input_gate, input, {gates, stride}}};
  products_.run(gate, claim_of(layer, Claim::kInputGate));
  team_.barrier();
  const auto activate = context_.kernels.activate[size_t(config.activation)];
  team_.share(rows.all, [&](Range mine) {
    for (int64_t row = mine.begin; row < mine.end; ++row) {
      const float* const of_layer =
          workspace.layer_inputs.data() + row * workspace.layer_inputs_stride + int64_t(layer) * config.size;
      activate(gates + row * stride, of_layer, config.size, gates + row * stride);
    }
  });
  team_.barrier();
  const LinearInput gated =
      inputs_.prepare({gates, stride}, rows, config.size, Norm{}, {&weights.input_output});
  const Segment output[] = {
      {weights.input_output, gated, {workspace.branch.data(), workspace.hidden_stride}}};
  products_.run(output, claim_of(layer, Claim::kInputOutput));
  team_.finish_stage(Stage::kDown);
  residual_.add_normalized(weights.input_norm, rows.all, weights.scale);
}

}  // namespace redoubt
