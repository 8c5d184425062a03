// Sizes of a step's memory. Untouched parts (the floats of an int8 model, say) are never resident.
#include "step/workspace.h"

#include <algorithm>

#include "contract/delta.h"

namespace redoubt {
namespace {

// Floats of a chunk of gate_proj's output: the larger kind, but at least one unit of columns for all rows.
size_t gate_chunk_floats(int32_t max_tokens) {
  constexpr int64_t kLargestGroup = 128;
  return size_t(std::max(kBf16GateChunkFloats, int64_t(max_tokens) * kLargestGroup));
}

// Sizes that the layers with experts need, each the largest of any.
struct MostExperts {
  int32_t count = 0;
  int32_t per_token = 0;
  int32_t inner = 0;
};
MostExperts most_experts(const ModelConfig& config) {
  MostExperts most;
  for (const LayerConfig& kind : config.kinds) {
    if (!kind.experts) continue;
    most.count = std::max(most.count, kind.experts->count);
    most.per_token = std::max(most.per_token, kind.experts->per_token);
    most.inner = std::max(most.inner, kind.experts->mlp.inner);
  }
  return most;
}

// Sizes that layers with latent attention need, each the largest of any; 0 without one.
struct MostLatent {
  int32_t query_rank = 0;
  int32_t parts = 0;   // of a head, before key_up or after value_up
  int32_t inputs = 0;  // of key_up or value_up
  int32_t output_inputs = 0;
};
MostLatent most_latent(const ModelConfig& config) {
  MostLatent most;
  for (const LayerConfig& kind : config.kinds) {
    const auto& latent = kind.attention.latent;
    if (!latent) continue;
    most.query_rank = std::max(most.query_rank, latent->query_rank);
    most.parts = std::max({most.parts, latent->query_dim(), latent->value_dim});
    most.inputs = std::max({most.inputs, latent->nope_dim, latent->kv_rank});
    most.output_inputs = std::max(most.output_inputs, config.heads * latent->value_dim);
  }
  return most;
}

bool has_output_norms(const ModelConfig& config) {
  if (config.layer_inputs || config.embedding_size > 0) return true;
  return std::any_of(config.kinds.begin(), config.kinds.end(), [](const LayerConfig& kind) {
    return kind.attention_output_norm || kind.mlp_output_norm;
  });
}

// The widest input of an output projection.
int64_t widest_attention(const ModelConfig& config) {
  const DeltaConfig* const delta = config.delta();
  return std::max({config.widest_query_dim(), delta == nullptr ? 0 : delta->values(),
                   config.conv() == nullptr ? 0 : config.hidden_size});
}
int64_t widest_qkv(const ModelConfig& config) {
  const DeltaConfig* const delta = config.delta();
  return std::max({config.widest_qkv_dim(), delta == nullptr ? 0 : delta->channels(),
                   config.conv() == nullptr ? 0 : 3 * config.hidden_size});
}
int64_t widest_gates(const ModelConfig& config) {
  int64_t widest = config.delta() == nullptr ? 0 : config.delta()->values();
  for (const LayerConfig& kind : config.kinds) {
    if (kind.attention.output_gate) widest = std::max<int64_t>(widest, kind.attention.shape.query_dim());
  }
  return widest;
}

// Of one task of step/delta.cc.
size_t delta_task_floats(const DeltaConfig& config) {
  const size_t key_dim = size_t(config.key_dim), value_dim = size_t(config.value_dim);
  return delta_scratch_floats(config.value_dim) + 2 * key_dim * value_dim +
         (key_dim + value_dim + 2) * kPageTokens + size_t(config.taps) * std::max(key_dim, value_dim);
}

int64_t layer_input_size(const ModelConfig& config) {
  return config.layer_inputs ? config.layer_inputs->size : 0;
}

// The widest input of the predictor's own products.
int64_t predictor_inputs(const ModelConfig& config) {
  if (!config.predictor) return 0;
  return (config.is_eagle() ? kEagleStates : 2) * int64_t(config.hidden_size);
}

bool has_experts_beside_mlp(const ModelConfig& config) {
  return std::any_of(config.kinds.begin(), config.kinds.end(),
                     [](const LayerConfig& kind) { return kind.has_both(); });
}

int64_t angles_of_row(const ModelConfig& config) {
  int64_t count = 1;
  for (const RopeConfig& rope : config.ropes) count += rope.rotary_dim;
  return count;
}

}  // namespace

ExpertsWorkspace::ExpertsWorkspace(const ModelConfig& config, int32_t rows) {
  const MostExperts most = most_experts(config);
  if (most.count == 0) return;
  const int64_t pairs = int64_t(rows) * most.per_token;
  experts.resize(size_t(pairs));
  factors.resize(size_t(pairs));
  shared_factors.resize(size_t(rows));
  sorted = ExpertRows(pairs, most.count);
  inputs = InputRows(pairs, config.hidden_size, most.count);
}

Workspace::Workspace(const ModelConfig& config, int32_t max_tokens, int32_t max_sequences,
                     int32_t thread_count)
    : hidden_stride(padded_stride(config.hidden_size)),
      qkv_stride(padded_stride(widest_qkv(config))),
      attention_stride(padded_stride(widest_attention(config))),
      gates_stride(padded_stride(widest_gates(config))),
      factors_stride(padded_stride(config.delta() == nullptr ? 0 : 2 * config.delta()->value_heads)),
      logits_stride(padded_stride(config.vocab_size)),
      angles_stride(angles_of_row(config)),
      scores_stride(padded_stride(most_experts(config).count)),
      query_latents_stride(padded_stride(most_latent(config).query_rank)),
      head_parts_stride(padded_stride(int64_t(config.heads) * most_latent(config).parts)),
      layer_inputs_stride(padded_stride(config.layers * layer_input_size(config))),
      input_gate_stride(padded_stride(layer_input_size(config))),
      predictor_parts_stride(padded_stride(2 * int64_t(config.hidden_size))),
      layer_states_stride(padded_stride(kEagleStates * int64_t(config.hidden_size))),
      logits_rows(std::max(max_sequences, std::min(max_tokens, kFewestLogitsRows))),
      claims(config.computed_layers() * kClaimsPerLayer + 2, thread_count) {
  const int64_t tokens = max_tokens;
  const MostLatent latent = most_latent(config);
  const int64_t widest =
      std::max<int64_t>({config.hidden_size, widest_attention(config), latent.query_rank,
                         latent.output_inputs, layer_input_size(config), predictor_inputs(config)});
  hidden = AlignedMemory<float>(size_t(tokens * hidden_stride));
  qkv = AlignedMemory<float>(size_t(tokens * qkv_stride));
  attention = AlignedMemory<float>(size_t(tokens * attention_stride));
  gates = AlignedMemory<float>(size_t(tokens * gates_stride));
  factors = AlignedMemory<float>(size_t(tokens * factors_stride));
  if (has_output_norms(config)) branch = AlignedMemory<float>(size_t(tokens * hidden_stride));
  if (has_experts_beside_mlp(config)) experts_branch = AlignedMemory<float>(size_t(tokens * hidden_stride));
  angles = AlignedMemory<float>(size_t(tokens * angles_stride));
  if (config.layer_inputs) {
    layer_inputs = AlignedMemory<float>(size_t(tokens * layer_inputs_stride));
    input_gate = AlignedMemory<float>(size_t(tokens * input_gate_stride));
  }
  logits = AlignedMemory<float>(size_t(logits_rows * logits_stride));
  if (config.predictor) {
    predictor_parts = AlignedMemory<float>(size_t(tokens * predictor_parts_stride));
    predictor_states = AlignedMemory<float>(size_t(max_sequences * hidden_stride));
  }
  if (config.is_eagle()) layer_states = AlignedMemory<float>(size_t(tokens * layer_states_stride));
  if (latent.parts > 0) {
    query_latents = AlignedMemory<float>(size_t(tokens * query_latents_stride));
    head_parts = AlignedMemory<float>(size_t(tokens * head_parts_stride));
    heads = InputRows(tokens * config.heads, latent.inputs, config.heads);
  }
  input = InputRows(tokens, widest);
  inner = InputRows(tokens, config.widest_inner());
  if (const MostExperts most = most_experts(config); most.count > 0) {
    scores = AlignedMemory<float>(size_t(tokens * scores_stride));
    experts = ExpertsWorkspace(config, max_tokens);
    experts_inner = InputRows(tokens * most.per_token, most.inner, most.count);
  }
  for (int32_t thread = 0; thread < thread_count; ++thread) {
    ThreadWorkspace& own = threads.emplace_back();
    own.input = InputRows(kPrivateRows, widest);
    own.rows =
        AlignedMemory<float>(size_t(std::max<int64_t>({widest, kNormalizedFloats, layer_inputs_stride})));
    own.experts = ExpertsWorkspace(config, kPrivateRows);
    if (config.delta() != nullptr) own.delta = AlignedMemory<float>(delta_task_floats(*config.delta()));
    own.gate = AlignedMemory<float>(gate_chunk_floats(max_tokens));
    own.up = AlignedMemory<float>(gate_chunk_floats(max_tokens));
  }
}

size_t Workspace::bytes() const {
  size_t total = layer_inputs.bytes() + input_gate.bytes() + branch.bytes() + experts_branch.bytes() +
                 scores.bytes() + experts.bytes() + experts_inner.bytes() + hidden.bytes() + qkv.bytes() +
                 attention.bytes() + gates.bytes() + factors.bytes() + angles.bytes() + logits.bytes() +
                 states.bytes() + predictor_parts.bytes() + predictor_states.bytes() + layer_states.bytes() +
                 input.bytes() + inner.bytes() + query_latents.bytes() + head_parts.bytes() + heads.bytes();
  for (const ThreadWorkspace& own : threads) {
    total += own.input.bytes() + own.rows.bytes() + own.gate.bytes() + own.up.bytes() +
             own.attention_scratch.bytes() + own.delta.bytes() + own.experts.bytes();
  }
  return total;
}

void Workspace::reserve_attention(size_t scratch_bytes, size_t state_count) {
  for (ThreadWorkspace& own : threads) {
    if (own.attention_scratch.bytes() < scratch_bytes) {
      own.attention_scratch = AlignedMemory<std::byte>(scratch_bytes);
    }
  }
  if (states.bytes() < state_count * sizeof(float)) states = AlignedMemory<float>(state_count);
}

}  // namespace redoubt
