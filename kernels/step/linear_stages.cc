// The stages that are matrix products: who multiplies which tiles, and in what form the rows get there.
#include <algorithm>
#include <array>

#include "step/forward.h"
#include "step/sharing.h"

namespace redoubt {
namespace {

// A part of quantized rows has a multiple: most kernels take so many at once.
constexpr int kRowsTogether = 8;
// Of the next stage's weights, asked for while waiting for the other threads: a part of a second-level cache.
constexpr size_t kMostUpcomingBytes = 256 << 10;

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

// Gate and up are computed in units of whole groups of the next matrix' input.
int gate_unit_tiles(const LayerWeights& weights) {
  return std::max(1, weights.down.weight.group / kTileOutputs);
}

}  // namespace

void ForwardPass::project_qkv(int thread, int layer) {
  const LayerWeights& weights = weights_of(thread).layers[size_t(layer)];
  const ModelConfig& config = context_.config;
  const LinearInput input =
      prepare(thread, workspace_.hidden.data(), workspace_.hidden_stride, nullptr, all_rows_.counts(),
              config.hidden_size, weights.input_norm, {&weights.query, &weights.key, &weights.value});
  float* query = workspace_.qkv.data();
  float* key = query + config.query_dim();
  float* value = key + config.kv_dim();
  const int64_t stride = workspace_.qkv_stride;
  run_linears(thread, input, claim_of(layer, Claim::kQkv),
              {Segment{weights.query, {query, stride, false}}, Segment{weights.key, {key, stride, false}},
               Segment{weights.value, {value, stride, false}}});
  finish_stage(thread, Stage::kQkv, upcoming(thread, batch_.tokens, {&weights.output.weight}));
}

void ForwardPass::project_keys_values(int thread, int layer) {
  const LayerWeights& weights = weights_of(thread).layers[size_t(layer)];
  const ModelConfig& config = context_.config;
  const LinearInput input =
      prepare(thread, workspace_.hidden.data(), workspace_.hidden_stride, nullptr, all_rows_.counts(),
              config.hidden_size, weights.input_norm, {&weights.key, &weights.value});
  float* key = workspace_.qkv.data() + config.query_dim();
  float* value = key + config.kv_dim();
  const int64_t stride = workspace_.qkv_stride;
  run_linears(thread, input, claim_of(layer, Claim::kQkv),
              {Segment{weights.key, {key, stride, false}}, Segment{weights.value, {value, stride, false}}});
  finish_stage(thread, Stage::kQkv);
}

void ForwardPass::project_queries(int thread, int layer) {
  const LayerWeights& weights = weights_of(thread).layers[size_t(layer)];
  const LinearInput input =
      prepare(thread, workspace_.hidden.data(), workspace_.hidden_stride, nullptr, wanted_rows_.counts(),
              context_.config.hidden_size, weights.input_norm, {&weights.query});
  run_linears(thread, input, claim_of(layer, Claim::kQueries),
              {Segment{weights.query, {workspace_.qkv.data(), workspace_.qkv_stride, false}}});
  finish_stage(thread, Stage::kQkv);
}

void ForwardPass::project_output(int thread, int layer, RowCounts rows) {
  const LayerWeights& weights = weights_of(thread).layers[size_t(layer)];
  const LinearInput input = prepare(thread, workspace_.attention.data(), workspace_.attention_stride, nullptr,
                                    rows, context_.config.query_dim(), nullptr, {&weights.output});
  run_linears(thread, input, claim_of(layer, Claim::kOutput),
              {Segment{weights.output, {workspace_.hidden.data(), workspace_.hidden_stride, true}}});
  finish_stage(thread, Stage::kOutput,
               upcoming(thread, rows.all, {&weights.gate.weight}, gate_unit_tiles(weights)));
}

// Gate and up for the same columns on the same thread, a chunk at a time, then SiLU and quantization of that
// chunk: what lies between the two stages never leaves the cache, and needs no barrier.
void ForwardPass::gate_up(int thread, int layer, RowCounts rows) {
  const LayerWeights& weights = weights_of(thread).layers[size_t(layer)];
  const LinearInput input =
      prepare(thread, workspace_.hidden.data(), workspace_.hidden_stride, nullptr, rows,
              context_.config.hidden_size, weights.post_attention_norm, {&weights.gate, &weights.up});
  ThreadWorkspace& own = workspace_.threads[size_t(thread)];
  const Range tiles = node_tiles(thread, weights.gate.weight);
  const int unit_tiles = gate_unit_tiles(weights);
  const int units = (tiles.end - tiles.begin + unit_tiles - 1) / unit_tiles;
  const int64_t chunk_floats = input.rounded.rows > 0 ? kBf16GateChunkFloats : kGateChunkFloats;
  const LinearInput inner = inner_input(rows, weights.down);
  const bool in_one = gates_in_one(weights, input, inner);
  const auto run_chunk = [&](Range chunk, LinearInput part) {
    const Linear gate = slice(weights.gate, chunk), up = slice(weights.up, chunk);
    const int64_t stride = gate.weight.tiles() * kTileOutputs;
    if (in_one && part.rounded.rows > 0) {
      const LinearOutput gates{own.gate.data(), stride, gate.bias}, ups{own.up.data(), stride, up.bias};
      const int block = (part.first_row + part.quantized_rows - input.quantized_rows) / part.rounded.height;
      const Bf16Rows out = inner.rounded.part(block, block + part.rounded.blocks());
      kernels_.gate_up_bf16({gate.weight, up.weight, gates, ups}, part.rounded, out,
                            chunk.begin * kTileOutputs);
      part.rounded.rows = 0;
      part.floats.rows = part.quantized_rows;
      if (part.quantized_rows == 0) return;
    }
    run_tiles(part, gate, {own.gate.data(), stride, false, false}, {0, gate.weight.tiles()});
    run_tiles(part, up, {own.up.data(), stride, false, false}, {0, up.weight.tiles()});
    const Range part_rows{part.first_row, part.first_row + part.floats.rows};
    activate(own, inner, part_rows, chunk.begin * kTileOutputs, gate.weight.rows);
  };
  const size_t unit_bytes =
      size_t(unit_tiles) * (weights.gate.weight.tile_bytes() + weights.up.weight.tile_bytes());
  const auto take = [&](Range range, const LinearInput& part) {
    const int64_t unit_floats = int64_t(part.floats.rows) * unit_tiles * kTileOutputs;
    const int chunk_units = int(std::max<int64_t>(1, chunk_floats / unit_floats));
    for (int unit = range.begin; unit < range.end; unit += chunk_units) {
      const int end = std::min(unit + chunk_units, range.end);
      run_chunk({tiles.begin + unit * unit_tiles, std::min(tiles.begin + end * unit_tiles, tiles.end)}, part);
    }
  };
  take_ranges(thread, input, units, unit_bytes, claim_of(layer, Claim::kGateUp), take);
  finish_stage(thread, Stage::kGateUp, upcoming(thread, rows.all, {&weights.down.weight}));
}

// Whether gate_up_bf16 can compute the rows that are rounded: down takes the same ones so.
bool ForwardPass::gates_in_one(const LayerWeights& weights, const LinearInput& input,
                               const LinearInput& inner) const {
  const PackedMatrix &gate = weights.gate.weight, &up = weights.up.weight;
  return input.rounded.rows > 0 && inner.quantized && gate.type == up.type && gate.group == up.group &&
         gate.rows % kTileOutputs == 0;
}

void ForwardPass::activate(ThreadWorkspace& own, const LinearInput& inner, Range part, int32_t col_begin,
                           int32_t cols) {
  const int64_t inner_cols = context_.config.intermediate_size;
  const int64_t stride = (cols + kTileOutputs - 1) / kTileOutputs * kTileOutputs;
  for (int32_t begin = part.begin; begin < part.end; begin += kActivatedRows) {
    const int32_t end = std::min(begin + kActivatedRows, part.end);
    float* const gates = own.gate.data() + (begin - part.begin) * stride;
    float* const ups = own.up.data() + (begin - part.begin) * stride;
    for (int64_t r = begin; r < end; ++r) {
      float* gate = gates + (r - begin) * stride;
      float* out = inner.quantized ? gate : workspace_.inner.floats.data() + r * inner_cols + col_begin;
      kernels_.silu_mul(gate, ups + (r - begin) * stride, cols, out);
    }
    if (inner.quantized) take_rows({gates, stride, end - begin, cols}, inner, begin, col_begin);
  }
}

void ForwardPass::project_down(int thread, int layer, RowCounts rows) {
  const LayerWeights& weights = weights_of(thread).layers[size_t(layer)];
  run_linears(thread, inner_input(rows, weights.down), claim_of(layer, Claim::kDown),
              {Segment{weights.down, {workspace_.hidden.data(), workspace_.hidden_stride, true}}});
  if (layer + 1 < context_.config.layers) {
    const LayerWeights& next = weights_of(thread).layers[size_t(layer) + 1];
    finish_stage(thread, Stage::kDown,
                 upcoming(thread, rows.all, {&next.query.weight, &next.key.weight, &next.value.weight}));
  } else {
    finish_stage(thread, Stage::kDown, upcoming(thread, rows.all, {&weights_of(thread).head.weight}));
  }
}

void ForwardPass::compute_head(int thread, Range rows, int chunk) {
  const Linear& head = weights_of(thread).head;
  const int32_t count = rows.end - rows.begin;
  const LinearInput input =
      prepare(thread, workspace_.hidden.data(), workspace_.hidden_stride, head_index_.data() + rows.begin,
              {count, count}, context_.config.hidden_size, weights_of(thread).final_norm, {&head});
  if (outputs_.logits != nullptr) {
    run_linears(thread, input, head_claim(chunk),
                {Segment{head, {outputs_.logits, context_.config.vocab_size, false}}});
  } else {
    run_linears(thread, input, head_claim(chunk),
                {Segment{head, {workspace_.logits.data(), workspace_.logits_stride, false}}});
  }
  finish_stage(thread, Stage::kHead);
}

bool ForwardPass::quantizes(const PackedMatrix& weight) const {
  return context_.compute_type != ComputeType::kFp32 && weight.is_integer();
}

ForwardPass::LinearInput ForwardPass::view(const InputRows& memory, RowCounts rows, int32_t cols,
                                           std::initializer_list<const Linear*> users) const {
  LinearInput input;
  for (const Linear* linear : users) {
    input.quantized = quantizes(linear->weight);
  }
  const Bf16Uses& bf16 = context_.bf16;
  input.quantized_rows = rows.all;
  if (input.quantized && bf16.prompts) input.quantized_rows = rows.answers;
  if (input.quantized && bf16.all) input.quantized_rows = 0;
  for (const Linear* linear : users) {
    const int32_t group = linear->weight.group;
    if (linear->two_terms) {
      input.two_terms = memory.two_terms.view(input.quantized_rows, cols, group, true);
    } else {
      input.one_term = memory.one_term.view(input.quantized_rows, cols, group, false);
    }
  }
  input.rounded = Bf16Rows(memory.rounded.data(), rows.all - input.quantized_rows, cols);
  input.floats = {memory.floats.data(), cols, rows.all, cols};
  return input;
}

ForwardPass::LinearInput ForwardPass::inner_input(RowCounts rows, const Linear& down) const {
  return view(workspace_.inner, rows, context_.config.intermediate_size, {&down});
}

void ForwardPass::take_rows(const FloatRows& x, const LinearInput& input, int32_t row, int32_t col) const {
  const int32_t quantized = std::clamp(input.quantized_rows - row, 0, x.rows);
  if (quantized > 0) {
    const FloatRows part{x.values, x.stride, quantized, x.cols};
    for (const QuantizedRows* integers : {&input.one_term, &input.two_terms}) {
      if (integers->values != nullptr) kernels_.quantize_rows(part, *integers, row, col);
    }
  }
  if (quantized < x.rows) {
    const FloatRows part{x.values + quantized * x.stride, x.stride, x.rows - quantized, x.cols};
    kernels_.round_rows(part, input.rounded, row + quantized - input.quantized_rows, col);
  }
}

ForwardPass::LinearInput ForwardPass::prepare(int thread, const float* first, int64_t stride,
                                              const int32_t* row_index, RowCounts rows, int32_t cols,
                                              const float* norm, std::initializer_list<const Linear*> users) {
  ThreadWorkspace& own = workspace_.threads[size_t(thread)];
  const bool is_private = rows.all <= kPrivateRows;
  const InputRows& target = is_private ? own.input : workspace_.input;
  LinearInput input = view(target, rows, cols, users);
  if (!input.quantized && norm == nullptr) {
    input.floats = {first, stride, rows.all, cols};
    return input;
  }
  const Range range = is_private ? Range{0, rows.all} : share(rows.all, thread, threads_);
  const int32_t most = int32_t(std::max<int64_t>(1, kNormalizedFloats / cols));
  for (int32_t begin = range.begin; begin < range.end; begin += most) {
    const int32_t end = std::min(begin + most, range.end);
    FloatRows x{first + begin * stride, stride, end - begin, cols};
    if (norm != nullptr) {
      float* normalized = input.quantized ? own.rows.data() : target.floats.data() + int64_t(begin) * cols;
      x.values = normalized;
      x.stride = cols;
      for (int32_t r = begin; r < end; ++r, normalized += cols) {
        const float* row = first + (row_index != nullptr ? row_index[r] : r) * stride;
        kernels_.rms_norm(row, norm, context_.config.rms_norm_epsilon, cols, normalized);
      }
    }
    if (input.quantized) take_rows(x, input, begin, 0);
  }
  if (!is_private) barrier(thread);
  return input;
}

ForwardPass::LinearInput ForwardPass::LinearInput::part(int index, int parts) const {
  LinearInput result = *this;
  if (rounded.rows > 0) {
    const int blocks = rounded.blocks(), rows = quantized_rows + rounded.rows;
    const auto blocks_before = [&](int part) {
      const int first = share(rows, part, parts).begin - quantized_rows;
      return part == parts ? blocks : std::clamp(first / rounded.height, 0, blocks);
    };
    const int begin = blocks_before(index);
    result.rounded = rounded.part(begin, blocks_before(index + 1));
    if (index > 0) {
      result.first_row = quantized_rows + begin * rounded.height;
      result.quantized_rows = 0;
    }
  } else {
    const Range whole = share((quantized_rows + kRowsTogether - 1) / kRowsTogether, index, parts);
    const int begin = whole.begin * kRowsTogether, end = std::min(whole.end * kRowsTogether, quantized_rows);
    if (one_term.values != nullptr) result.one_term = one_term.part(begin, end);
    if (two_terms.values != nullptr) result.two_terms = two_terms.part(begin, end);
    result.first_row = begin;
    result.quantized_rows = end - begin;
  }
  result.floats.rows = result.quantized_rows + result.rounded.rows;
  return result;
}

template <typename Take>
void ForwardPass::take_ranges(int thread, const LinearInput& input, int count, size_t item_bytes, int claim,
                              const Take& take) {
  const Range team = context_.nodes.threads_of(context_.nodes.node_of(thread));
  const int threads = team.end - team.begin;
  if (threads == 1) return take(Range{0, count}, input);
  const bool in_bf16 = input.rounded.rows > 0;
  const int rows_to_share = in_bf16 ? input.rounded.rows : input.quantized_rows;
  const bool share_rows = input.quantized && threads == threads_ && threads <= kMostRowSharers &&
                          rows_to_share >= threads * kFewestOwnRows;
  take_pieces(thread, team, claim, [&](int owner, int index) {
    const Range all = share_rows ? Range{0, count} : share(count, owner, threads);
    const int size = all.end - all.begin;
    Range piece;
    if (input.floats.rows <= kPrivateRows) {
      piece = halving_piece(all, index, int(std::max<size_t>(1, kSmallestPieceBytes / item_bytes)));
    } else if (in_bf16) {
      piece = equal_piece(all, index, std::max(1, size / kBf16PiecesPerShare));
    } else {
      piece = halving_piece(all, index, std::max(1, size / kSmallestPiecePart));
    }
    if (piece.begin == piece.end) return false;
    if (!share_rows) {
      take(piece, input);
      return true;
    }
    const LinearInput part = input.part(owner, threads);
    if (part.floats.rows == 0) return false;
    take(piece, part);
    return true;
  });
}

Upcoming ForwardPass::upcoming(int thread, int32_t rows, std::initializer_list<const PackedMatrix*> matrices,
                               int unit_tiles) const {
  if (rows > kPrivateRows) return {};
  const Range team = context_.nodes.threads_of(context_.nodes.node_of(thread));
  int tiles = 0;
  for (const PackedMatrix* matrix : matrices) {
    const Range own = node_tiles(thread, *matrix);
    tiles += own.end - own.begin;
  }
  const int units = (tiles + unit_tiles - 1) / unit_tiles;
  const Range mine = share(units, thread - team.begin, team.end - team.begin);
  int begin = mine.begin * unit_tiles;
  for (const PackedMatrix* matrix : matrices) {
    const Range own = node_tiles(thread, *matrix);
    const int left = own.end - own.begin - begin;
    if (left > 0) {
      const size_t count = size_t(std::min(left, (mine.end - mine.begin) * unit_tiles));
      return {matrix->tile(own.begin + begin), std::min(matrix->tile_bytes() * count, kMostUpcomingBytes)};
    }
    begin -= own.end - own.begin;
  }
  return {};
}

template <size_t kSegments>
void ForwardPass::run_linears(int thread, const LinearInput& input, int claim,
                              const Segment (&segments)[kSegments]) {
  std::array<Range, kSegments> own;
  int total = 0;
  for (size_t i = 0; i < kSegments; ++i) {
    own[i] = node_tiles(thread, segments[i].linear.weight);
    total += own[i].end - own[i].begin;
  }
  const size_t tile_bytes = segments[0].linear.weight.tile_bytes();
  take_ranges(thread, input, total, tile_bytes, claim, [&](Range mine, const LinearInput& part_of_rows) {
    int first = 0;
    for (size_t i = 0; i < kSegments; ++i) {
      const int tiles = own[i].end - own[i].begin, offset = own[i].begin - first;
      const Range part = intersect(mine, {first, first + tiles});
      if (part.begin < part.end) {
        Target target = segments[i].target;
        target.values += part_of_rows.first_row * target.stride;
        run_tiles(part_of_rows, segments[i].linear, target, {part.begin + offset, part.end + offset});
      }
      first += tiles;
    }
  });
}

void ForwardPass::run_tiles(const LinearInput& input, const Linear& linear, const Target& target,
                            Range tiles) {
  LinearOutput output = {.values = target.values,
                         .stride = target.stride,
                         .bias = linear.bias,
                         .accumulate = target.accumulate,
                         .elsewhere = target.elsewhere};
  if (!input.quantized) {
    return kernels_.linear_fp32(linear.weight, input.floats, output, tiles.begin, tiles.end);
  }
  if (input.quantized_rows > 0) {
    const QuantizedRows& integers = linear.two_terms ? input.two_terms : input.one_term;
    kernels_.linear_int8(linear.weight, integers, output, tiles.begin, tiles.end);
  }
  if (input.rounded.rows > 0) {
    output.values += input.quantized_rows * output.stride;
    kernels_.linear_bf16(linear.weight, input.rounded, output, tiles.begin, tiles.end);
  }
}

}  // namespace redoubt
