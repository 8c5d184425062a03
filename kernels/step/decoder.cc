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
      latent_(context, team_, inputs_, products_),
      attention_(context, team_),
      delta_(context, team_, inputs_, products_),
      gated_convolution_(context, team_, inputs_, products_),
      feed_forward_(context, team_, inputs_, products_),
      experts_(context, team_, inputs_, products_, feed_forward_),
      layer_inputs_(context, team_, inputs_, products_, residual_),
      results_(context, team_),
      predictor_(context, team_, inputs_, products_, residual_),
      tap_(context, team_) {}

void Decoder::run() {
  if (context_.drafts != nullptr) return draft();
  const int last = context_.config.layers - 1, last_storing = context_.config.last_storing_layer();
  const int first = context_.batch.first_layer, end = context_.batch.end_layer;
  const LayerPart part = context_.batch.part;
  if (first == 0 && part != LayerPart::kRest) embed();
  if (part != LayerPart::kWhole) return run_part(first, part);
  for (int layer = first; layer < end; ++layer) {
    team_.once([&] {
      if (context_.batch.is_interrupted()) throw StepInterrupted();
    });
    residual_.copy_hidden(layer);
    predictor_.take_states(layer);
    if (layer < last_storing || !context_.plan.ends_early()) {
      run_layer(layer);
    } else {
      run_wanted_rows(layer, /*stores=*/layer == last_storing);
    }
  }
  if (context_.outputs.tap != nullptr || end <= last) return;
  residual_.copy_hidden(last + 1);
  predictor_.take_states(last + 1);
  residual_.copy_final_norm();
  results_.read_hidden_states();
  run_head();
  if (context_.config.predictor) store_predictor_keys();
}

void Decoder::draft() {
  residual_.embed();
  predictor_.take_drafts();
  run_layer(context_.config.layers);
  predictor_.choose();
}

void Decoder::store_predictor_keys() {
  predictor_.take_step();
  key_value(context_.config.layers);
}

void Decoder::embed() {
  residual_.embed();
  if (context_.config.embedding_size > 0 && context_.batch.hidden_states == nullptr) projections_.embedding();
  if (context_.config.layer_inputs) layer_inputs_.embed();
}

void Decoder::run_layer(int layer) {
  tap_.attention_input(layer);
  if (!goes_on(context_, layer, TapPlace::kQueryInput)) return;
  const LayerRows& rows = context_.plan.all();
  if (context_.config.layer(layer).delta) {
    if (!goes_on(context_, layer, TapPlace::kOutputInput)) return;
    delta_.project(layer);
    delta_.convolve(layer);
    delta_.run_heads(layer);
  } else if (context_.config.layer(layer).conv) {
    gated_convolution_.project(layer);
    gated_convolution_.convolve(layer);
  } else {
    if (latent_.is_in(layer)) {
      latent_.query_key_value(layer);
    } else {
      projections_.query_key_value(layer);
    }
    if (!goes_on(context_, layer, TapPlace::kValueUpInput)) return;
    const HeadShape& shape = context_.config.shape(layer);
    const bool stores = context_.config.layer(layer).attention.keys_of < 0;
    attention_.rope_and_store(layer, rows, {0, shape.heads + (stores ? shape.kv_heads : 0)});
    attend(layer, rows);
  }
  finish_layer(layer, rows);
}

void Decoder::run_part(int layer, LayerPart part) {
  if (part == LayerPart::kKeys) return key_value(layer);
  const LayerRows& rows = context_.plan.all();
  projections_.query(layer, rows.counts());
  attention_.rope_and_store(layer, rows, {0, context_.config.shape(layer).heads});
  attend(layer, rows);
  finish_layer(layer, rows);
}

// Nothing reads the output of the last layer that stores keys and values but the layers after it, if any, the
// head (or a reader), and of a prompt the head reads one row: the other rows are needed for their keys and
// values only.
void Decoder::run_wanted_rows(int layer, bool stores) {
  const int heads = context_.config.heads;
  const LayerRows& wanted = context_.plan.wanted();
  const bool is_latent = latent_.is_in(layer);
  if (stores) key_value(layer);
  if (wanted.batch.tokens == 0) return;
  if (stores) residual_.keep_wanted_rows();
  if (is_latent) {
    latent_.query(layer);
  } else {
    projections_.query(layer, wanted.counts());
  }
  attention_.rope_and_store(layer, wanted, {0, heads});
  attend(layer, wanted);
  finish_layer(layer, wanted);
}

void Decoder::key_value(int layer) {
  if (latent_.is_in(layer)) {
    latent_.key_value(layer);
  } else {
    projections_.key_value(layer);
  }
  const HeadShape& shape = context_.config.shape(layer);
  attention_.rope_and_store(layer, context_.plan.all(), {shape.heads, shape.heads + shape.kv_heads});
}

void Decoder::attend(int layer, const LayerRows& rows) {
  attention_.attend(layer, rows);
  if (latent_.is_in(layer)) latent_.values(layer, rows.counts());
}

void Decoder::finish_layer(int layer, const LayerRows& rows) {
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
  projections_.output(layer, rows, target_of(layer, norm));
  tap_.attention_output(layer);
  if (context_.config.layer(layer).norms_sum) return residual_.normalize_rows(norm, rows.all);
  if (norm.weight != nullptr) residual_.add_normalized(norm, rows.all);
}

void Decoder::gate_up(int layer, RowCounts rows) {
  tap_.mlp_input(layer);
  if (!goes_on(context_, layer, TapPlace::kPairs)) return;
  const LayerConfig& config = context_.config.layer(layer);
  if (config.mlp) feed_forward_.gate_up(layer, rows);
  if (config.has_both()) {
    const Workspace& workspace = context_.workspace;
    feed_forward_.down(layer, rows, {workspace.branch.data(), workspace.hidden_stride});
    tap_.experts_input(layer);
  }
  if (config.experts) experts_.gate_up(layer, rows);
}

void Decoder::down(int layer, RowCounts rows) {
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  const LayerConfig& config = context_.config.layer(layer);
  const Norm& norm = weights.mlp_output_norm;
  if (config.has_both()) {
    const Workspace& workspace = context_.workspace;
    experts_.down(layer, rows, {workspace.experts_branch.data(), workspace.hidden_stride});
    residual_.join_experts(weights.dense_output_norm, weights.experts_output_norm, rows.all);
  } else if (config.experts) {
    experts_.down(layer, rows, target_of(layer, norm));
  } else {
    feed_forward_.down(layer, rows, target_of(layer, norm));
  }
  tap_.mlp_output(layer);
  if (config.norms_sum) return residual_.normalize_rows(norm, rows.all);
  const bool ends = !context_.config.layer_inputs;
  if (norm.weight != nullptr) residual_.add_normalized(norm, rows.all, ends ? weights.scale : 1.0f);
  if (!ends) layer_inputs_.add(layer, rows);
}

Target Decoder::target_of(int layer, const Norm& output_norm) const {
  const Workspace& workspace = context_.workspace;
  const bool adds = output_norm.weight == nullptr || context_.config.layer(layer).norms_sum;
  return {adds ? context_.hidden() : workspace.branch.data(), workspace.hidden_stride, /*accumulate=*/adds};
}

// All logits for the caller; or as many rows at a time as there is room for, to sample and read.
void Decoder::run_head() {
  const int rows = int(context_.plan.head_places().size());
  if (context_.config.embedding_size > 0 && rows > 0) projections_.before_head(rows);
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
