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
      results_(context, team_) {}

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
  residual_.copy_hidden(last + 1);
  residual_.copy_final_norm();
  results_.read_hidden_states();
  run_head();
}

void Decoder::run_layer(int layer) {
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
  projections_.output(layer, rows.counts());
  feed_forward_.gate_up(layer, rows.counts());
  feed_forward_.down(layer, rows.counts());
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
