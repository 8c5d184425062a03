// Gate, up, activation and down (contract: step/feed_forward.h).
#include "step/feed_forward.h"

#include "step/tap.h"

namespace redoubt {
namespace {

// The activation of so many rows, then their quantization: the kernel takes 16 groups at a time, of which a
// row of a chunk may have two.
constexpr int32_t kActivatedRows = 16;

// Whether gate_up_bf16 can compute the rows that are rounded: down takes the same ones so.
bool gates_in_one(const MlpWeights& mlp, const LinearInput& input, const LinearInput& inner) {
  if (!mlp.gated() || mlp.activation != Activation::kSilu) return false;
  const PackedMatrix &gate = mlp.gate.weight, &up = mlp.up.weight;
  return input.rounded.rows > 0 && inner.quantized && gate.type == up.type && gate.group == up.group &&
         gate.rows % kTileOutputs == 0;
}

}  // namespace

const Norm& mlp_input_norm(const LayerConfig& layer, const LayerWeights& weights) {
  return layer.parallel && !layer.mlp_norm ? weights.attention_norm : weights.mlp_norm;
}

const Norm& experts_input_norm(const LayerConfig& layer, const LayerWeights& weights) {
  return layer.has_both() ? weights.experts_norm : mlp_input_norm(layer, weights);
}

Upcoming upcoming_of_mlp(const Team& team, const LayerWeights& weights, int32_t rows) {
  if (!weights.mlp) return team.upcoming(rows, {&weights.experts->router.weight});
  const MlpWeights& mlp = *weights.mlp;
  return team.upcoming(rows, {mlp.gated() ? &mlp.gate.weight : &mlp.up.weight}, gate_unit_tiles(mlp));
}

void finish_mlp(const StepContext& context, Team& team, int layer, int32_t rows) {
  const ModelWeights& model = team.weights();
  if (layer + 1 < context.config.layers) {
    const LayerWeights& next = model.layers[size_t(layer) + 1];
    const PackedMatrix &query = next.query.weight, &key = next.key.weight, &value = next.value.weight;
    const Upcoming upcoming =
        next.latent ? team.upcoming(rows, {&next.latent->first().weight, &next.latent->key_value.weight})
        : value.data != nullptr ? team.upcoming(rows, {&query, &key, &value})
        : key.data != nullptr   ? team.upcoming(rows, {&query, &key})
                                : team.upcoming(rows, {&query});
    team.finish_stage(Stage::kDown, upcoming);
  } else {
    const Linear& head = context.config.is_predictor(layer) ? predictor_head(model) : model.head;
    team.finish_stage(Stage::kDown, team.upcoming(rows, {&head.weight}));
  }
}

GateUpStage FeedForward::stage_of(const MlpWeights& mlp, const LinearInput& input, const LinearInput& inner,
                                  float* tapped) const {
  return {.mlp = mlp,
          .input = input,
          .inner = inner,
          .tiles = team_.node_tiles(mlp.up.weight),
          .unit_tiles = gate_unit_tiles(mlp),
          .in_one = tapped == nullptr && gates_in_one(mlp, input, inner),
          .tapped = tapped};
}

void FeedForward::gate_up(int layer, RowCounts rows) {
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  const MlpWeights& mlp = *weights.mlp;
  const Workspace& workspace = context_.workspace;
  const Linear& first = mlp.gated() ? mlp.gate : mlp.up;
  const LinearInput input =
      inputs_.prepare({context_.hidden(), workspace.hidden_stride}, rows, context_.config.hidden_size,
                      mlp_input_norm(context_.config.layer(layer), weights), {&first, &mlp.up});
  const LinearInput inner = inputs_.view(workspace.inner, rows, mlp.inner(), {&mlp.down});
  const bool beside_experts = weights.experts.has_value();
  float* const tap =
      tapped(context_, layer, beside_experts ? &LayerTap::dense_down_input : &LayerTap::down_input);
  const GateUpStage stage = stage_of(mlp, input, inner, tap);
  const SharedWork work{.items = stage.units(),
                        .item_bytes = stage.unit_bytes(),
                        .rows = input.rows(),
                        .rounded_rows = input.rounded.rows,
                        .rows_can_be_shared = input.quantized};
  team_.take_ranges(work, claim_of(layer, Claim::kGateUp), [&](Range units, RowPart part) {
    if (part.count == 1) return take_units(stage, units, input);
    const LinearInput part_of_rows = input.part(part);
    if (part_of_rows.rows() > 0) take_units(stage, units, part_of_rows);
  });
  team_.finish_stage(Stage::kGateUp, team_.upcoming(rows.all, {&mlp.down.weight}));
}

void FeedForward::take_units(const GateUpStage& stage, Range units, const LinearInput& rows) {
  const int64_t chunk_floats = stage.input.rounded.rows > 0 ? kBf16GateChunkFloats : kGateChunkFloats;
  const int64_t unit_floats = int64_t(rows.rows()) * stage.unit_tiles * kTileOutputs;
  const int chunk_units = int(std::max<int64_t>(1, chunk_floats / unit_floats));
  for (int unit = units.begin; unit < units.end; unit += chunk_units) {
    const int end = std::min(unit + chunk_units, units.end);
    run_chunk(stage,
              {stage.tiles.begin + unit * stage.unit_tiles,
               std::min(stage.tiles.begin + end * stage.unit_tiles, stage.tiles.end)},
              rows);
  }
}

void FeedForward::run_chunk(const GateUpStage& stage, Range tiles, LinearInput rows) {
  const MlpWeights& mlp = stage.mlp;
  const Linear up = tiles_of(mlp.up, tiles);
  const int64_t stride = up.weight.tiles() * kTileOutputs;
  const int32_t col_begin = tiles.begin * kTileOutputs;
  const Range all{0, up.weight.tiles()};
  ThreadWorkspace& own = team_.own();
  if (stage.in_one && rows.rounded.rows > 0) {
    const Linear gate = tiles_of(mlp.gate, tiles);
    const LinearOutput gates{own.gate.data(), stride, gate.bias}, ups{own.up.data(), stride, up.bias};
    const int block =
        (rows.first_row + rows.quantized_rows - stage.input.quantized_rows) / rows.rounded.height;
    const Bf16Rows out = stage.inner.rounded.part(block, block + rows.rounded.blocks());
    team_.multiply([&] {
      context_.kernels.gate_up_bf16({gate.weight, up.weight, gates, ups}, rows.rounded, out, col_begin);
    });
    rows.rounded.rows = 0;
    rows.floats.rows = rows.quantized_rows;
    if (rows.quantized_rows == 0) return;
  }
  if (mlp.gated()) {
    products_.multiply(rows, tiles_of(mlp.gate, tiles), {own.gate.data(), stride, false, /*elsewhere=*/false},
                       all);
  }
  products_.multiply(rows, up, {own.up.data(), stride, false, /*elsewhere=*/false}, all);
  activate(stage, {rows.first_row, rows.first_row + rows.rows()}, col_begin, up.weight.rows);
}

void FeedForward::activate(const GateUpStage& stage, Range rows, int32_t col_begin, int32_t cols) {
  const MlpWeights& mlp = stage.mlp;
  const LinearInput& inner = stage.inner;
  const auto activation = context_.kernels.activate[size_t(mlp.activation)];
  const int64_t stride = (cols + kTileOutputs - 1) / kTileOutputs * kTileOutputs;
  ThreadWorkspace& own = team_.own();
  for (int32_t begin = rows.begin; begin < rows.end; begin += kActivatedRows) {
    const int32_t end = std::min(begin + kActivatedRows, rows.end);
    const int64_t offset = (begin - rows.begin) * stride;
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = offset + (r - begin) * stride;
      float* gate = (mlp.gated() ? own.gate : own.up).data() + at;
      const float* up = mlp.gated() ? own.up.data() + at : nullptr;
      float* out = inner.quantized ? gate : inner.own_floats + r * inner.floats.stride + col_begin;
      activation(gate, up, cols, out);
      if (stage.tapped != nullptr) std::copy_n(out, cols, stage.tapped + r * mlp.inner() + col_begin);
    }
    const float* activated = (mlp.gated() ? own.gate : own.up).data() + offset;
    if (inner.quantized) inputs_.take_rows({activated, stride, end - begin, cols}, inner, begin, col_begin);
  }
}

void FeedForward::down(int layer, RowCounts rows, const Target& target) {
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  const MlpWeights& mlp = *weights.mlp;
  const LinearInput input = inputs_.view(context_.workspace.inner, rows, mlp.inner(), {&mlp.down});
  const Segment segments[] = {{mlp.down, input, target}};
  products_.run(segments, claim_of(layer, Claim::kDown));
  if (weights.experts) {
    return team_.finish_stage(Stage::kDown, team_.upcoming(rows.all, {&weights.experts->router.weight}));
  }
  finish_mlp(context_, team_, layer, rows.all);
}

}  // namespace redoubt
