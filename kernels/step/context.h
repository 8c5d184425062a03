// What all threads of a step work with: the model's parts, the batch, what it is to return, and which rows
// are computed. Only references; the model owns what they refer to.
#pragma once

#include <cstdint>
#include <vector>

#include "contract/kernel_table.h"
#include "machine/failure.h"
#include "machine/thread_pool.h"
#include "model/config.h"
#include "model/kv_cache.h"
#include "model/rope_angles.h"
#include "model/weights.h"
#include "step/batch.h"
#include "step/plan.h"
#include "step/workspace.h"
#include "weights/node_slices.h"

namespace redoubt {

struct StepContext {
  const ModelConfig& config;
  const std::vector<ModelWeights>& weights;  // by node
  const ThreadNodes& nodes;
  const KernelTable& kernels;
  const RopeAngles& rope_angles;
  const KvCache& kv_cache;
  ComputeType compute_type;
  Bf16Uses bf16;               // granted by the tier
  const int32_t* page_tables;  // [batch's sequences][pages_per_sequence], checked
  int32_t pages_per_sequence;
  float attention_scale;  // 1 / sqrt(head_dim)
  ThreadPool& pool;
  Workspace& workspace;
  StepProfile& profile;
  const Batch& batch;  // checked, and nobody else's to change
  const StepOutputs& outputs;
  const StepPlan& plan;
  FirstFailure& failure;
  uint64_t began_ticks;
};

}  // namespace redoubt
