// Embedding, and copies of hidden states (contract: step/residual.h).
#include "step/residual.h"

#include <algorithm>
#include <cstring>

namespace redoubt {

float* Residual::row(int64_t r) const { return context_.hidden() + r * context_.workspace.hidden_stride; }

float* Residual::output_row(int index, int64_t r) const {
  return context_.outputs.hidden_states +
         (int64_t(index) * context_.batch.tokens + r) * context_.config.hidden_size;
}

void Residual::embed() {
  team_.share(context_.batch.tokens, [&](Range rows) {
    for (int32_t r = rows.begin; r < rows.end; ++r) {
      embed_row(r);
      fill_angles(r);
    }
  });
  team_.finish_stage(Stage::kEmbed);
}

void Residual::embed_row(int32_t r) const {
  const ModelConfig& config = context_.config;
  if (const float* const given = context_.batch.hidden_states; given != nullptr) {
    std::copy_n(given + int64_t(r) * config.hidden_size, config.hidden_size, row(r));
    return;
  }
  const Workspace& workspace = context_.workspace;
  const bool projects = config.embedding_size > 0;
  float* const out = projects ? workspace.branch.data() + r * workspace.hidden_stride : row(r);
  float* const own = team_.own().rows.data();
  token_embedding(r, out);
  if (config.learned_positions) {
    float* const positions = projects ? row(r) : own;
    const int32_t position = context_.batch.positions[r] % config.max_positions;
    read_row(&ModelWeights::positions, position, positions);
    if (config.token_types > 0) add_type(context_.batch.positions[r] / config.max_positions, positions);
    if (!projects) context_.kernels.add_scaled(positions, 1.0f, config.hidden_size, out);
  } else if (config.token_types > 0) {
    add_type(0, out);
  }
  if (config.embedding_norm) {
    std::memcpy(own, out, size_t(config.hidden_size) * sizeof(float));
    normalize(context_, team_.weights().embedding_norm, own, out);
  }
}

void Residual::add_type(int32_t type, float* out) const {
  const int32_t size = context_.config.hidden_size;
  context_.kernels.add_scaled(team_.weights().types + int64_t(type) * size, 1.0f, size, out);
}

void Residual::token_embedding(int32_t r, float* out) const {
  const ModelConfig& config = context_.config;
  read_row(&ModelWeights::embedding, context_.batch.token_ids[r], out);
  if (config.embedding_scale != 1.0f) {
    context_.kernels.scale(out, config.embedding_scale, config.embedding_cols());
  }
}

void Residual::read_row(PackedMatrix ModelWeights::* matrix, int32_t row, float* out) const {
  const int32_t tiles = (context_.weights.front().*matrix).tiles();
  const int owner = context_.nodes.owner_of(row / kTileOutputs, tiles);
  context_.kernels.dequantize_row(context_.weights[size_t(owner)].*matrix, row, out);
}

void Residual::fill_angles(int32_t r) const {
  float* angles = context_.angles() + r * context_.workspace.angles_stride;
  for (const RopeAngles& rope : context_.rope_angles) {
    rope.fill(context_.batch.positions[r], angles);
    angles += rope.rotary_dim();
  }
  *angles = float(context_.batch.positions[r]);
}

void Residual::join_experts(const Norm& norm, const Norm& experts_norm, int32_t rows) {
  const Workspace& workspace = context_.workspace;
  const int32_t size = context_.config.hidden_size;
  team_.share(rows, [&](Range mine) {
    float* const normalized = team_.own().rows.data();
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      float* const branch = workspace.branch.data() + r * workspace.hidden_stride;
      normalize(context_, norm, branch, normalized);
      normalize(context_, experts_norm, workspace.experts_branch.data() + r * workspace.hidden_stride,
                branch);
      context_.kernels.add_scaled(normalized, 1.0f, size, branch);
    }
  });
  team_.barrier();
}

void Residual::add_normalized(const Norm& norm, int32_t rows, float scale) {
  const Workspace& workspace = context_.workspace;
  team_.share(rows, [&](Range mine) {
    float* const normalized = team_.own().rows.data();
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      normalize(context_, norm, workspace.branch.data() + r * workspace.hidden_stride, normalized);
      context_.kernels.add_scaled(normalized, 1.0f, context_.config.hidden_size, row(r));
      if (scale != 1.0f) context_.kernels.scale(row(r), scale, context_.config.hidden_size);
    }
  });
  team_.barrier();
}

void Residual::normalize_rows(const Norm& norm, int32_t rows) {
  team_.share(rows, [&](Range mine) {
    float* const normalized = team_.own().rows.data();
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      normalize(context_, norm, row(r), normalized);
      std::copy_n(normalized, context_.config.hidden_size, row(r));
    }
  });
  team_.barrier();
}

void Residual::keep_wanted_rows() {
  const auto move_rows = [&] {
    const size_t row_bytes = size_t(context_.config.hidden_size) * sizeof(float);
    const int64_t stride = context_.workspace.angles_stride;
    float* const angles = context_.angles();
    for (int32_t r = 0; r < context_.plan.wanted().batch.tokens; ++r) {
      const int64_t from = context_.plan.token_of(r);
      std::memmove(row(r), row(from), row_bytes);
      std::memmove(angles + r * stride, angles + from * stride, size_t(stride) * sizeof(float));
      if (!context_.config.layer_inputs) continue;
      const int64_t inputs_stride = context_.workspace.layer_inputs_stride;
      float* const inputs = context_.workspace.layer_inputs.data();
      std::memmove(inputs + r * inputs_stride, inputs + from * inputs_stride,
                   size_t(inputs_stride) * sizeof(float));
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
  const ModelConfig& config = context_.config;
  const StepOutputs& outputs = context_.outputs;
  float* const to = outputs.final_hidden != nullptr    ? outputs.final_hidden
                    : outputs.hidden_states != nullptr ? output_row(config.layers + 1, 0)
                                                       : nullptr;
  if (to == nullptr) return;
  team_.share(context_.batch.tokens, [&](Range rows) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      final_norm(context_, row(r), to + r * config.hidden_size);
    }
  });
}

}  // namespace redoubt
