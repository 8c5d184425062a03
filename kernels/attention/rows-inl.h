// Rows of attention, which are (query token, head) pairs, token by token: where they are, and how the states
// of their partitions merge. Included inside the tier's namespace and target region, after its
// vector_<tier>-inl.h and simd/exp2-inl.h.

const float* query_of(const AttentionTask& task, int64_t row) {
  return task.queries + row / task.group_heads * task.query_token_stride +
         row % task.group_heads * task.kv.head_dim;
}
float* output_of(const AttentionTask& task, int64_t row) {
  return task.output + row / task.group_heads * task.output_token_stride +
         row % task.group_heads * task.kv.head_dim;
}
int visible_to(const AttentionTask& task, int64_t row) {
  return visible_keys(task, int(row / task.group_heads));
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

void normalize_row(float sum, float* output, int head_dim) {
  const F32s inverse = set(1.0f / sum);
  for (int d = 0; d < head_dim; d += kLanes) store(output + d, mul(load(output + d), inverse));
}
