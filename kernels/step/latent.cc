// Latent attention's products (contract: step/latent.h). The formulas: DeepSeek-V2 (2024), section 2.1.2,
// with the heads' matrices between latent and keys or values moved to the queries and the outputs.
#include "step/latent.h"

#include <algorithm>

#include "step/tap.h"

namespace redoubt {

const LatentConfig& Latent::config(int layer) const { return *context_.config.layer(layer).attention.latent; }

LinearInput Latent::layer_input(int layer, RowCounts rows, std::initializer_list<const Linear*> users) {
  const Workspace& workspace = context_.workspace;
  return inputs_.prepare({context_.hidden(), workspace.hidden_stride}, rows, context_.config.hidden_size,
                         team_.weights().layers[size_t(layer)].attention_norm, users);
}

Segment Latent::first_query(int layer, const LinearInput& input) const {
  const Workspace& workspace = context_.workspace;
  if (config(layer).query_rank == 0) {
    return {weights(layer).query, input, {workspace.head_parts.data(), workspace.head_parts_stride}};
  }
  return {weights(layer).query_down, input, {workspace.query_latents.data(), workspace.query_latents_stride}};
}

Segment Latent::key_value_segment(int layer, const LinearInput& input) const {
  const Workspace& workspace = context_.workspace;
  return {weights(layer).key_value,
          input,
          {workspace.qkv.data() + context_.config.shape(layer).query_dim(), workspace.qkv_stride}};
}

void Latent::query_key_value(int layer) {
  const LatentWeights& latent = weights(layer);
  const RowCounts rows = context_.plan.all().counts();
  const LinearInput input = layer_input(layer, rows, {&latent.first(), &latent.key_value});
  const Segment segments[] = {first_query(layer, input), key_value_segment(layer, input)};
  products_.run(segments, claim_of(layer, Claim::kQkv));
  team_.finish_stage(Stage::kQkv);
  finish_key_values(layer);
  finish_queries(layer, rows);
}

void Latent::key_value(int layer) {
  const LinearInput input = layer_input(layer, context_.plan.all().counts(), {&weights(layer).key_value});
  const Segment segments[] = {key_value_segment(layer, input)};
  products_.run(segments, claim_of(layer, Claim::kQkv));
  team_.finish_stage(Stage::kQkv);
  finish_key_values(layer);
  team_.barrier();
}

void Latent::query(int layer) {
  const RowCounts rows = context_.plan.wanted().counts();
  const LinearInput input = layer_input(layer, rows, {&weights(layer).first()});
  const Segment segments[] = {first_query(layer, input)};
  products_.run(segments, claim_of(layer, Claim::kQueries));
  team_.finish_stage(Stage::kQkv);
  finish_queries(layer, rows);
}

void Latent::finish_key_values(int layer) {
  const LatentConfig& latent = config(layer);
  const float* const norm = weights(layer).key_value_norm;
  const Workspace& workspace = context_.workspace;
  team_.share(context_.batch.tokens, [&](Range rows) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      float* const key =
          workspace.qkv.data() + r * workspace.qkv_stride + context_.config.shape(layer).query_dim();
      float* const value = key + context_.config.shape(layer).kv_dim();
      std::fill_n(value, latent.rope_dim, 0.0f);
      context_.kernels.rms_norm(key + latent.rope_dim, norm, latent.norm_epsilon, latent.kv_rank,
                                value + latent.rope_dim);
      std::copy_n(value + latent.rope_dim, latent.kv_rank, key + latent.rope_dim);
    }
  });
}

void Latent::finish_queries(int layer, RowCounts rows) {
  const LatentConfig& latent = config(layer);
  const Workspace& workspace = context_.workspace;
  const int32_t head_dim = context_.config.shape(layer).head_dim;
  if (latent.query_rank > 0) {
    tap_query_input(layer, rows);
    const LinearInput input =
        inputs_.prepare({workspace.query_latents.data(), workspace.query_latents_stride}, rows,
                        latent.query_rank, weights(layer).query_norm, {&weights(layer).query});
    const Segment segments[] = {
        {weights(layer).query, input, {workspace.head_parts.data(), workspace.head_parts_stride}}};
    products_.run(segments, claim_of(layer, Claim::kQueryUp));
    team_.finish_stage(Stage::kQkv);
  }
  copy_rotary_parts(layer, rows.all);
  const Heads heads{.matrices = weights(layer).key_up,
                    .source = workspace.head_parts.data() + latent.rope_dim,
                    .source_stride = workspace.head_parts_stride,
                    .source_cols = latent.query_dim(),
                    .target = workspace.qkv.data() + latent.rope_dim,
                    .target_stride = workspace.qkv_stride,
                    .target_cols = head_dim};
  tap_heads(heads, latent.nope_dim, tapped(context_, layer, &LayerTap::key_up_input));
  multiply_heads(heads, rows, claim_of(layer, Claim::kKeyUp));
  team_.finish_stage(Stage::kQkv);
}

void Latent::values(int layer, RowCounts rows) {
  const LatentConfig& latent = config(layer);
  const Workspace& workspace = context_.workspace;
  const Heads heads{.matrices = weights(layer).value_up,
                    .source = workspace.attention.data() + latent.rope_dim,
                    .source_stride = workspace.attention_stride,
                    .source_cols = context_.config.shape(layer).head_dim,
                    .target = workspace.head_parts.data(),
                    .target_stride = workspace.head_parts_stride,
                    .target_cols = latent.value_dim};
  tap_heads(heads, latent.kv_rank, tapped(context_, layer, &LayerTap::value_up_input));
  multiply_heads(heads, rows, claim_of(layer, Claim::kValueUp));
  team_.finish_stage(Stage::kOutput,
                     team_.upcoming(rows.all, {&team_.weights().layers[size_t(layer)].output.weight}));
}

void Latent::tap_query_input(int layer, RowCounts rows) {
  float* const to = tapped(context_, layer, &LayerTap::query_input);
  if (to == nullptr) return;
  const Workspace& workspace = context_.workspace;
  team_.share(rows.all, [&](Range mine) {
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      normalize(context_, weights(layer).query_norm,
                workspace.query_latents.data() + r * workspace.query_latents_stride,
                to + r * config(layer).query_rank);
    }
  });
}

void Latent::tap_heads(const Heads& heads, int32_t cols, float* to) {
  if (to == nullptr) return;
  const int64_t count = context_.config.heads;
  team_.share(context_.batch.tokens, [&](Range mine) {
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      for (int64_t h = 0; h < count; ++h) {
        std::copy_n(heads.source + r * heads.source_stride + h * heads.source_cols, cols,
                    to + (r * count + h) * cols);
      }
    }
  });
}

void Latent::copy_rotary_parts(int layer, int32_t rows) {
  const LatentConfig& latent = config(layer);
  const Workspace& workspace = context_.workspace;
  team_.share(rows, [&](Range mine) {
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      for (int64_t h = 0; h < context_.config.heads; ++h) {
        std::copy_n(
            workspace.head_parts.data() + r * workspace.head_parts_stride + h * latent.query_dim(),
            latent.rope_dim,
            workspace.qkv.data() + r * workspace.qkv_stride + h * context_.config.shape(layer).head_dim);
      }
    }
  });
}

// The threads bring rows of heads into the matrices' form, which lie head by head.
void Latent::multiply_heads(const Heads& heads, RowCounts rows, int claim) {
  const int32_t count = context_.config.heads, cols = heads.matrices.front().weight.cols;
  std::vector<LinearInput> inputs;
  std::vector<Segment> segments;
  team_.once([&] {
    for (int32_t h = 0; h < count; ++h) inputs.push_back(input_of_head(heads, rows, h));
    for (int32_t h = 0; h < count; ++h) {
      segments.push_back({heads.matrices[size_t(h)],
                          inputs[size_t(h)],
                          {heads.target + int64_t(h) * heads.target_cols, heads.target_stride}});
    }
  });
  if (context_.compute_type != ComputeType::kFp32 && heads.matrices.front().weight.is_integer()) {
    team_.share(count * rows.all, [&](Range mine) {
      for (int32_t at = mine.begin; at < mine.end;) {
        const int32_t h = at / rows.all, row = at % rows.all;
        const int32_t taken = std::min(rows.all - row, mine.end - at);
        const float* const from = heads.source + row * heads.source_stride + int64_t(h) * heads.source_cols;
        inputs_.take_rows({from, heads.source_stride, taken, cols}, inputs[size_t(h)], row, 0);
        at += taken;
      }
    });
    team_.barrier();
  }
  if (!segments.empty()) products_.run(segments, claim);
}

LinearInput Latent::input_of_head(const Heads& heads, RowCounts rows, int32_t head) const {
  const InputRows& memory = context_.workspace.heads;
  const Linear& linear = heads.matrices[size_t(head)];
  const int32_t cols = linear.weight.cols;
  LinearInput input = inputs_.view(memory, rows, cols, {&linear});
  if (!input.quantized) {
    input.floats = {heads.source + int64_t(head) * heads.source_cols, heads.source_stride, rows.all, cols};
    return input;
  }
  const int32_t integers = input.quantized_rows, begin = head * integers, end = begin + integers;
  const auto own = [&](const IntegerRows& all, bool two_terms) {
    return all.view(end, cols, linear.weight.group, two_terms).part(begin, end);
  };
  if (linear.two_terms) {
    input.two_terms = own(memory.two_terms, true);
  } else {
    input.one_term = own(memory.one_term, false);
  }
  input.rounded = Bf16Rows(memory.rounded.data() + head * Bf16Rows::size(input.rounded.rows, cols),
                           input.rounded.rows, cols);
  return input;
}

}  // namespace redoubt
