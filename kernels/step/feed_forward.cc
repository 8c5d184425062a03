// Gate, up, SiLU and down (contract: step/feed_forward.h).
#include "step/feed_forward.h"

namespace redoubt {
namespace {

// SiLU of so many rows, then their quantization: the kernel takes 16 groups at a time, of which a row of a
// chunk may have two.
constexpr int32_t kActivatedRows = 16;

// Tiles [range.begin, range.end) of a layer as a layer of its own, so that its outputs start at column 0.
Linear slice(const Linear& linear, Range range) {
  Linear part = linear;
  part.weight.data = linear.weight.tile(range.begin);
  part.weight.rows = std::min(linear.weight.rows, range.end * kTileOutputs) - range.begin * kTileOutputs;
  if (linear.bias != nullptr) part.bias = linear.bias + range.begin * kTileOutputs;
  return part;
}

}  // namespace

void FeedForward::gate_up(int layer, RowCounts rows) {
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  const Workspace& workspace = context_.workspace;
  const LinearInput input =
      inputs_.prepare({workspace.hidden.data(), workspace.hidden_stride}, rows, context_.config.hidden_size,
                      weights.post_attention_norm, {&weights.gate, &weights.up});
  const LinearInput inner = inputs_.inner(rows, weights.down);
  GateUpStage stage{.weights = weights,
                    .input = input,
                    .inner = inner,
                    .tiles = team_.node_tiles(weights.gate.weight),
                    .unit_tiles = gate_unit_tiles(weights),
                    .in_one = false};
  stage.in_one = gates_in_one(stage);
  const size_t tile_bytes = weights.gate.weight.tile_bytes() + weights.up.weight.tile_bytes();
  const SharedWork work{
      .items = (stage.tiles.end - stage.tiles.begin + stage.unit_tiles - 1) / stage.unit_tiles,
      .item_bytes = size_t(stage.unit_tiles) * tile_bytes,
      .rows = input.rows(),
      .rounded_rows = input.rounded.rows,
      .rows_can_be_shared = input.quantized};
  team_.take_ranges(work, claim_of(layer, Claim::kGateUp), [&](Range units, RowPart part) {
    if (part.count == 1) return take_units(stage, units, input);
    const LinearInput part_of_rows = input.part(part);
    if (part_of_rows.rows() > 0) take_units(stage, units, part_of_rows);
  });
  team_.finish_stage(Stage::kGateUp, team_.upcoming(rows.all, {&weights.down.weight}));
}

// Whether gate_up_bf16 can compute the rows that are rounded: down takes the same ones so.
bool FeedForward::gates_in_one(const GateUpStage& stage) const {
  const PackedMatrix &gate = stage.weights.gate.weight, &up = stage.weights.up.weight;
  return stage.input.rounded.rows > 0 && stage.inner.quantized && gate.type == up.type &&
         gate.group == up.group && gate.rows % kTileOutputs == 0;
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
  const Linear gate = slice(stage.weights.gate, tiles), up = slice(stage.weights.up, tiles);
  const int64_t stride = gate.weight.tiles() * kTileOutputs;
  const int32_t col_begin = tiles.begin * kTileOutputs;
  ThreadWorkspace& own = team_.own();
  if (stage.in_one && rows.rounded.rows > 0) {
    const LinearOutput gates{own.gate.data(), stride, gate.bias}, ups{own.up.data(), stride, up.bias};
    const int block =
        (rows.first_row + rows.quantized_rows - stage.input.quantized_rows) / rows.rounded.height;
    const Bf16Rows out = stage.inner.rounded.part(block, block + rows.rounded.blocks());
    context_.kernels.gate_up_bf16({gate.weight, up.weight, gates, ups}, rows.rounded, out, col_begin);
    rows.rounded.rows = 0;
    rows.floats.rows = rows.quantized_rows;
    if (rows.quantized_rows == 0) return;
  }
  const Range all{0, gate.weight.tiles()};
  products_.multiply(rows, gate, {own.gate.data(), stride, false, /*elsewhere=*/false}, all);
  products_.multiply(rows, up, {own.up.data(), stride, false, /*elsewhere=*/false}, all);
  activate(stage.inner, {rows.first_row, rows.first_row + rows.rows()}, col_begin, gate.weight.rows);
}

void FeedForward::activate(const LinearInput& inner, Range rows, int32_t col_begin, int32_t cols) {
  const int64_t inner_cols = context_.config.intermediate_size;
  const int64_t stride = (cols + kTileOutputs - 1) / kTileOutputs * kTileOutputs;
  ThreadWorkspace& own = team_.own();
  for (int32_t begin = rows.begin; begin < rows.end; begin += kActivatedRows) {
    const int32_t end = std::min(begin + kActivatedRows, rows.end);
    float* const gates = own.gate.data() + (begin - rows.begin) * stride;
    float* const ups = own.up.data() + (begin - rows.begin) * stride;
    for (int64_t r = begin; r < end; ++r) {
      float* gate = gates + (r - begin) * stride;
      float* out =
          inner.quantized ? gate : context_.workspace.inner.floats.data() + r * inner_cols + col_begin;
      context_.kernels.silu_mul(gate, ups + (r - begin) * stride, cols, out);
    }
    if (inner.quantized) inputs_.take_rows({gates, stride, end - begin, cols}, inner, begin, col_begin);
  }
}

void FeedForward::down(int layer, RowCounts rows) {
  const ModelWeights& model = team_.weights();
  const LayerWeights& weights = model.layers[size_t(layer)];
  const Workspace& workspace = context_.workspace;
  const LinearInput input = inputs_.inner(rows, weights.down);
  const Segment segments[] = {
      {weights.down, input, {workspace.hidden.data(), workspace.hidden_stride, /*accumulate=*/true}}};
  products_.run(segments, claim_of(layer, Claim::kDown));
  if (layer + 1 < context_.config.layers) {
    const LayerWeights& next = model.layers[size_t(layer) + 1];
    team_.finish_stage(Stage::kDown,
                       team_.upcoming(rows.all, {&next.query.weight, &next.key.weight, &next.value.weight}));
  } else {
    team_.finish_stage(Stage::kDown, team_.upcoming(rows.all, {&model.head.weight}));
  }
}

}  // namespace redoubt
