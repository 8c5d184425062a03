// What all threads of a step share: the model's parts, the batch, the wanted outputs, and which rows are
// computed. Only references; the model owns the objects.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "contract/kernel_table.h"
#include "machine/failure.h"
#include "machine/thread_pool.h"
#include "model/config.h"
#include "model/kv_cache.h"
#include "model/rope_angles.h"
#include "model/state_pages.h"
#include "model/weights.h"
#include "step/batch.h"
#include "step/plan.h"
#include "step/workspace.h"
#include "weights/node_slices.h"

namespace redoubt {

class LastHidden;
class Sampler;

// What a step that drafts gives: of each sequence, a token and how likely it is to be the next one.
struct DraftOutputs {
  Sampler* const* samplers;  // [sequences]: each draws the token; null: the likeliest is taken
  int32_t* tokens;           // [sequences]
  float* chances;            // [sequences]
};

struct StepContext {
  const ModelConfig& config;
  const std::vector<ModelWeights>& weights;  // by node
  const ThreadNodes& nodes;
  const KernelTable& kernels;
  const std::vector<RopeAngles>& rope_angles;  // of config.ropes
  const KvCache& kv_cache;
  const StatePages& state_pages;  // empty for a model without states
  ComputeType compute_type;
  Bf16Uses bf16;  // granted by the tier
  // [page groups][max_sequences][pages_per_sequence], rows ordered as the batch's sequences, checked. In the
  // states' group kNoPage marks pages whose states are not kept.
  const int32_t* page_tables;
  int32_t max_sequences;
  int32_t pages_per_sequence;
  ThreadPool& pool;
  Workspace& workspace;
  std::array<StageTicks, kStages>* profile;  // null: nobody wants to know where the time goes
  LastHidden& last_hidden;                   // empty without a predictor
  // Of a step that drafts: one token a sequence goes through the predictor's layer alone. Else null.
  const DraftOutputs* drafts;
  const Batch& batch;  // checked, and nobody else's to change
  const StepOutputs& outputs;
  const StepPlan& plan;
  FirstFailure& failure;
  uint64_t began_ticks;

  // The residual stream, and the angles of positions, from the batch's first row on.
  float* hidden() const { return workspace.hidden.data() + batch.first_row * workspace.hidden_stride; }
  float* angles() const { return workspace.angles.data() + batch.first_row * workspace.angles_stride; }
};

// Applies a norm, which must exist, to a row of hidden_size or of the norm's own size.
inline void normalize(const StepContext& context, const Norm& norm, const float* x, float* out) {
  const ModelConfig& config = context.config;
  if (norm.size > 0) {
    context.kernels.rms_norm(x, norm.weight, norm.epsilon, norm.size, out);
  } else if (config.norm == NormType::kLayer) {
    context.kernels.layer_norm(x, norm.weight, norm.bias, config.norm_epsilon, config.hidden_size, out);
  } else {
    context.kernels.rms_norm(x, norm.weight, config.norm_epsilon, config.hidden_size, out);
  }
}

// Applies the model's final norm to a row of hidden_size; copies the row if there is none.
inline void final_norm(const StepContext& context, const float* x, float* out) {
  const Norm& norm = context.weights.front().final_norm;
  if (norm.weight != nullptr) return normalize(context, norm, x, out);
  std::copy_n(x, context.config.hidden_size, out);
}

}  // namespace redoubt
