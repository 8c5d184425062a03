// Rows of attention, which are (query token, head) pairs, token by token: where they are, and how the states
// of their partitions and their sinks merge. Included inside the tier's namespace and target region, after
// its vector_<tier>-inl.h and simd/exp2-inl.h.

const float* query_of(const AttentionTask& task, int64_t row) {
  return task.queries + row / task.group_heads * task.query_token_stride +
         row % task.group_heads * task.kv.head_dim;
}
float* output_of(const AttentionTask& task, int64_t row) {
  return task.output + row / task.group_heads * task.output_token_stride +
         row % task.group_heads * task.kv.head_dim;
}
int token_of(const AttentionTask& task, int64_t row) { return int(row / task.group_heads); }
int visible_to(const AttentionTask& task, int64_t row) { return visible_keys(task, token_of(task, row)); }
KeyRange seen_by(const AttentionTask& task, int64_t row, int p) {
  return seen_in_partition(task, token_of(task, row), p);
}
int first_partition_of(const AttentionTask& task, int64_t row) {
  return task.window == 0 ? 0 : first_partition(task, token_of(task, row));
}
ScoreModifier modifier_of(const AttentionTask& task, int64_t row) {
  return score_modifier(task, row % task.group_heads);
}
// From a row's query to the first key of partition p.
int distance_to(const AttentionTask& task, int64_t row, int p) {
  return p * kPartitionTokens - (task.context_before + token_of(task, row));
}

void merge_row(float* max, float* sum, float* output, float part_max, float part_sum,
               const float* part_output, int head_dim) {
  const float merged = part_max > *max ? part_max : *max;
  const F32s keep = exp2_nonpositive(set(*max - merged)), add = exp2_nonpositive(set(part_max - merged));
  alignas(64) float sums[kLanes];
  store(sums, fma(set(part_sum), add, mul(set(*sum), keep)));
  *max = merged;
  *sum = sums[0];
  for (int d = 0; d < head_dim; d += kLanes) {
    store(output + d, fma(load(part_output + d), add, mul(load(output + d), keep)));
  }
}

// What a row's merged output is multiplied with.
float normalizer(const AttentionTask& task, int64_t row, float max, float sum) {
  if (task.sinks == nullptr) return 1.0f / sum;
  const float sink = task.sinks[row % task.group_heads] * kLog2eHigh;
  const float merged = sink > max ? sink : max;
  alignas(64) float keep[kLanes], add[kLanes];
  store(keep, exp2_nonpositive(set(max - merged)));
  store(add, exp2_nonpositive(set(sink - merged)));
  return keep[0] * (1.0f / (add[0] + sum * keep[0]));
}

void scale_row(float factor, float* output, int head_dim) {
  for (int d = 0; d < head_dim; d += kLanes) store(output + d, mul(load(output + d), set(factor)));
}
