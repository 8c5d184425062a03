// The order of a step's stages (contract: step/decoder.h).
#include "step/decoder.h"

#include <algorithm>

namespace redoubt {

Decoder::Decoder(const StepContext& context, int thread)
    : context_(context),
      team_(context, thread),
      inputs_(context, team_),
      products_(context, team_),
      residual_(context, team_),
      projections_(context, team_, inputs_, products_),
      attention_(context, team_),
      feed_forward_(context, team_, inputs_, products_),
      experts_(context, team_, inputs_, products_, feed_forward_),
      results_(context, team_),
      tap_(context, team_) {}

void Decoder::run() {
  const int last = context_.config.layers - 1;
  residual_.embed();
  for (int layer = 0; layer <= last; ++layer) {
    residual_.copy_hidden(layer);
    if (layer == last && context_.plan.ends_early()) {
      run_last_layer(layer);
    } else {
      run_layer(layer);
    }
  }
  if (context_.outputs.tap != nullptr) return;
  residual_.copy_hidden(last + 1);
  residual_.copy_final_norm();
  results_.read_hidden_states();
  run_head();
}

void Decoder::run_layer(int layer) {
  tap_.attention_input(layer);
  if (!goes_on(context_, layer, TapPlace::kOutputInput)) return;
  projections_.query_key_value(layer);
  attention_.rope_and_store(layer, context_.plan.all(),
                            {0, context_.config.heads + context_.config.kv_heads});
  attend_and_finish_layer(layer, context_.plan.all());
}

// Nothing reads the last layer's output but the head (or a reader), and of a prompt the head reads one row:
// the other rows are needed for their keys and values only.
void Decoder::run_last_layer(int layer) {
  const int heads = context_.config.heads, kv_heads = context_.config.kv_heads;
  const LayerRows& wanted = context_.plan.wanted();
  projections_.key_value(layer);
  attention_.rope_and_store(layer, context_.plan.all(), {heads, heads + kv_heads});
  if (wanted.batch.tokens == 0) return;
  residual_.keep_wanted_rows();
  projections_.query(layer);
  attention_.rope_and_store(layer, wanted, {0, heads});
  attend_and_finish_layer(layer, wanted);
}

void Decoder::attend_and_finish_layer(int layer, const LayerRows& rows) {
  attention_.attend(layer, rows);
  tap_.output_input(layer);
  // A parallel MLP reads the residual stream before attention adds to it.
  const bool parallel = context_.config.layer(layer).parallel;
  if (parallel) gate_up(layer, rows.counts());
  if (!goes_on(context_, layer, TapPlace::kAttentionOutput)) return;
  attention_output(layer, rows.counts());
  if (!parallel) gate_up(layer, rows.counts());
  if (!goes_on(context_, layer, TapPlace::kEnd)) return;
  down(layer, rows.counts());
  tap_.hidden(layer);
}

void Decoder::attention_output(int layer, RowCounts rows) {
  const Norm& norm = team_.weights().layers[size_t(layer)].attention_output_norm;
  projections_.output(layer, rows, target_of(norm));
  tap_.attention_output(layer);
  if (norm.weight != nullptr) residual_.add_normalized(norm, rows.all);
}

void Decoder::gate_up(int layer, RowCounts rows) {
  tap_.mlp_input(layer);
  if (!goes_on(context_, layer, TapPlace::kPairs)) return;
  if (context_.config.layer(layer).experts) return experts_.gate_up(layer, rows);
  feed_forward_.gate_up(layer, rows);
}

void Decoder::down(int layer, RowCounts rows) {
  const Norm& norm = team_.weights().layers[size_t(layer)].mlp_output_norm;
  if (context_.config.layer(layer).experts) {
    experts_.down(layer, rows, target_of(norm));
  } else {
    feed_forward_.down(layer, rows, target_of(norm));
  }
  tap_.mlp_output(layer);
  if (norm.weight != nullptr) residual_.add_normalized(norm, rows.all);
}

Target Decoder::target_of(const Norm& output_norm) const {
  const Workspace& workspace = context_.workspace;
  const bool adds = output_norm.weight == nullptr;
  return {(adds ? workspace.hidden : workspace.branch).data(), workspace.hidden_stride, /*accumulate=*/adds};
}

// All logits for the caller; or as many rows at a time as there is room for, to sample and read.
void Decoder::run_head() {
  const int rows = int(context_.plan.head_places().size());
  if (context_.outputs.logits != nullptr) return projections_.head({0, rows}, 0);
  const int most = context_.workspace.logits_rows;
  for (int chunk = 0; chunk * most < rows; ++chunk) {
    const Range range{chunk * most, std::min((chunk + 1) * most, rows)};
    projections_.head(range, chunk);
    results_.read_logits(range);
  }
}

void run_step(const StepContext& context) {
  Attention::reserve(context, context.plan.all());
  if (context.plan.ends_early()) Attention::reserve(context, context.plan.wanted());
  context.pool.run([&](int thread) { Decoder(context, thread).run(); });
  context.failure.rethrow();
}

}  // namespace redoubt
