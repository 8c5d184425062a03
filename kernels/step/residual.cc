// Embedding, and copies of hidden states (contract: step/residual.h).
#include "step/residual.h"

#include <cstring>

namespace redoubt {

float* Residual::row(int64_t r) const {
  return context_.workspace.hidden.data() + r * context_.workspace.hidden_stride;
}

float* Residual::output_row(int index, int64_t r) const {
  return context_.outputs.hidden_states +
         (int64_t(index) * context_.batch.tokens + r) * context_.config.hidden_size;
}

void Residual::embed() {
  const int32_t rotary_dim = context_.config.rope.rotary_dim;
  team_.share(context_.batch.tokens, [&](Range rows) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const int32_t token = context_.batch.token_ids[r];
      const int32_t tiles = context_.weights.front().embedding.tiles();
      const int node = context_.nodes.owner_of(token / kTileOutputs, tiles);
      context_.kernels.dequantize_row(context_.weights[size_t(node)].embedding, token, row(r));
      context_.rope_angles.fill(context_.batch.positions[r],
                                context_.workspace.angles.data() + r * rotary_dim);
    }
  });
  team_.finish_stage(Stage::kEmbed);
}

void Residual::keep_wanted_rows() {
  const auto move_rows = [&] {
    const size_t row_bytes = size_t(context_.config.hidden_size) * sizeof(float);
    const int64_t rotary_dim = context_.config.rope.rotary_dim;
    float* const angles = context_.workspace.angles.data();
    for (int32_t r = 0; r < context_.plan.wanted().batch.tokens; ++r) {
      const int64_t from = context_.plan.token_of(r);
      std::memmove(row(r), row(from), row_bytes);
      std::memmove(angles + r * rotary_dim, angles + from * rotary_dim, size_t(rotary_dim) * sizeof(float));
    }
  };
  if (team_.thread() == 0) team_.once(move_rows);
  team_.barrier();
}

void Residual::copy_hidden(int index) {
  if (context_.outputs.hidden_states == nullptr) return;
  team_.share(context_.batch.tokens, [&](Range rows) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      std::memcpy(output_row(index, r), row(r), size_t(context_.config.hidden_size) * sizeof(float));
    }
  });
}

void Residual::copy_final_norm() {
  if (context_.outputs.hidden_states == nullptr) return;
  const ModelConfig& config = context_.config;
  team_.share(context_.batch.tokens, [&](Range rows) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      context_.kernels.rms_norm(row(r), context_.weights.front().final_norm, config.rms_norm_epsilon,
                                config.hidden_size, output_row(config.layers + 1, r));
    }
  });
}

}  // namespace redoubt
