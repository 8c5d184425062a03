// Copies of rows (contract: step/tap.h).
#include "step/tap.h"

#include <algorithm>

#include "step/feed_forward.h"

namespace redoubt {

void Tap::attention_input(int layer) {
  normalize_rows(team_.weights().layers[size_t(layer)].attention_norm,
                 tapped(context_, layer, &LayerTap::attention_input));
}

void Tap::output_input(int layer) {
  const Workspace& workspace = context_.workspace;
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  copy_rows((weights.latent ? workspace.head_parts : workspace.attention).data(),
            weights.latent ? workspace.head_parts_stride : workspace.attention_stride,
            weights.output.weight.cols, tapped(context_, layer, &LayerTap::output_input));
}

void Tap::attention_output(int layer) {
  copy_hidden_rows(written(layer, team_.weights().layers[size_t(layer)].attention_output_norm),
                   tapped(context_, layer, &LayerTap::attention_output));
}

void Tap::mlp_input(int layer) {
  normalize_rows(mlp_input_norm(context_.config.layer(layer), team_.weights().layers[size_t(layer)]),
                 tapped(context_, layer, &LayerTap::mlp_input));
}

void Tap::experts_input(int layer) {
  normalize_rows(experts_input_norm(context_.config.layer(layer), team_.weights().layers[size_t(layer)]),
                 tapped(context_, layer, &LayerTap::experts_input));
}

void Tap::mlp_output(int layer) {
  copy_hidden_rows(written(layer, team_.weights().layers[size_t(layer)].mlp_output_norm),
                   tapped(context_, layer, &LayerTap::mlp_output));
}

void Tap::hidden(int layer) {
  copy_hidden_rows(context_.hidden(), tapped(context_, layer, &LayerTap::hidden));
}

const float* Tap::written(int layer, const Norm& output_norm) const {
  const Workspace& workspace = context_.workspace;
  const bool adds = output_norm.weight == nullptr || context_.config.layer(layer).norms_sum;
  return adds ? context_.hidden() : workspace.branch.data();
}

void Tap::normalize_rows(const Norm& norm, float* to) {
  const Workspace& workspace = context_.workspace;
  const int32_t cols = context_.config.hidden_size;
  if (norm.weight == nullptr) return copy_hidden_rows(context_.hidden(), to);
  if (to == nullptr) return;
  team_.share(context_.batch.tokens, [&](Range rows) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      normalize(context_, norm, context_.hidden() + r * workspace.hidden_stride, to + r * cols);
    }
  });
  team_.barrier();
}

void Tap::copy_hidden_rows(const float* from, float* to) {
  copy_rows(from, context_.workspace.hidden_stride, context_.config.hidden_size, to);
}

void Tap::copy_rows(const float* from, int64_t stride, int32_t cols, float* to) {
  if (to == nullptr) return;
  team_.share(context_.batch.tokens, [&](Range rows) {
    for (int64_t r = rows.begin; r < rows.end; ++r) std::copy_n(from + r * stride, cols, to + r * cols);
  });
  team_.barrier();
}

}  // namespace redoubt
