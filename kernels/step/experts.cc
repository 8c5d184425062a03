// Routing, and experts' products (contract: step/experts.h).
#include "step/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "step/tap.h"

namespace redoubt {
namespace {

// Computing so many rows takes as long as reading the weights.
constexpr int32_t kRowsForFree = 4;

// A row of integers: its numbers and what belongs to its groups.
void copy_integers(const QuantizedRows& from, int32_t row, const QuantizedRows& to, int32_t at) {
  if (from.values == nullptr) return;
  const size_t cols = size_t(from.cols), groups = size_t(from.cols / from.group);
  std::memcpy(to.values + at * cols, from.values + row * cols, cols);
  if (from.low_values != nullptr) std::memcpy(to.low_values + at * cols, from.low_values + row * cols, cols);
  std::memcpy(to.scales + at * groups, from.scales + row * groups, groups * sizeof(float));
  std::memcpy(to.starts + at * groups, from.starts + row * groups, groups * sizeof(int32_t));
  std::memcpy(to.offsets + at * groups, from.offsets + row * groups, groups * sizeof(float));
}

void copy_rounded(const Bf16Rows& from, int32_t row, const Bf16Rows& to, int32_t at) {
  for (int32_t step = 0; step < from.cols / Bf16Rows::kStepInputs; ++step) {
    std::memcpy(to.row(at, step), from.row(row, step), Bf16Rows::kStepInputs * sizeof(uint16_t));
  }
}

}  // namespace

ExpertsWorkspace& Experts::memory(int32_t rows) const {
  return is_private(rows) ? team_.own().experts : context_.workspace.experts;
}

void Experts::gate_up(int layer, RowCounts rows) {
  const ExpertsWeights& weights = *team_.weights().layers[size_t(layer)].experts;
  const FloatRows scored = normalized(layer, rows);
  score(layer, scored);
  choose(layer, rows, scored);
  team_.once([&] { tap_pairs(layer); });
  if (!goes_on(context_, layer, TapPlace::kDownInput)) return;
  const MlpWeights& first = weights.experts.front();
  const LinearInput natural = prepared(layer, rows, scored, {&first.gate, &first.up});
  team_.once([&] { list_parts(layer, rows, natural); });
  if (is_private(rows.all)) {
    team_.once([&] { copy_rows(natural, {0, chosen_->sorted.pairs()}); });
  } else {
    team_.share(chosen_->sorted.pairs(), [&](Range pairs) { copy_rows(natural, pairs); });
    team_.barrier();
  }
  take_gate_up(layer, rows);
  team_.finish_stage(Stage::kGateUp);
}

FloatRows Experts::normalized(int layer, RowCounts rows) {
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  const Workspace& workspace = context_.workspace;
  const bool own_norm = context_.config.layer(layer).experts->router_norm;
  return inputs_.normalized(
      {context_.hidden(), workspace.hidden_stride}, rows.all,
      own_norm ? weights.experts->router_norm : experts_input_norm(context_.config.layer(layer), weights));
}

LinearInput Experts::prepared(int layer, RowCounts rows, const FloatRows& scored,
                              std::initializer_list<const Linear*> users) {
  const Workspace& workspace = context_.workspace;
  const LayerConfig& config = context_.config.layer(layer);
  const int32_t cols = context_.config.hidden_size;
  if (!config.experts->router_norm) {
    return inputs_.prepare({scored.values, scored.stride}, rows, cols, Norm{}, users);
  }
  return inputs_.prepare({context_.hidden(), workspace.hidden_stride}, rows, cols,
                         experts_input_norm(config, team_.weights().layers[size_t(layer)]), users);
}

void Experts::score(int layer, const FloatRows& rows) {
  const Linear& router = team_.weights().layers[size_t(layer)].experts->router;
  const Workspace& workspace = context_.workspace;
  LinearInput input;
  input.floats = rows;
  input.quantized_rows = rows.rows;
  const Segment segments[] = {{router, input, {workspace.scores.data(), workspace.scores_stride}}};
  products_.run(segments, claim_of(layer, Claim::kRouter));
  team_.finish_stage(Stage::kRouter);
}

void Experts::choose(int layer, RowCounts rows, const FloatRows& normalized) {
  ExpertsWorkspace& chosen = memory(rows.all);
  chosen_ = &chosen;
  const ExpertsConfig& config = *context_.config.layer(layer).experts;
  const auto sort = [&] {
    chosen.sorted.sort(config, chosen.experts.data(), chosen.factors.data(), rows.all, rows.answers);
  };
  if (is_private(rows.all)) {
    team_.once([&] {
      choose_for(layer, {0, rows.all}, normalized);
      sort();
    });
    return;
  }
  team_.share(rows.all, [&](Range mine) { choose_for(layer, mine, normalized); });
  team_.barrier();
  if (team_.thread() == 0) team_.once(sort);
  team_.barrier();
}

void Experts::choose_for(int layer, Range rows, const FloatRows& normalized) {
  const ExpertsConfig& config = *context_.config.layer(layer).experts;
  const ExpertsWeights& weights = *team_.weights().layers[size_t(layer)].experts;
  const Workspace& workspace = context_.workspace;
  float* const scores = team_.own().rows.data();
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    std::copy_n(workspace.scores.data() + r * workspace.scores_stride, config.count, scores);
    const int64_t at = r * config.per_token;
    choose_experts(config, weights.correction_bias, scores, chosen_->experts.data() + at,
                   chosen_->factors.data() + at);
    if (weights.expert_scale != nullptr) {
      for (int64_t i = at; i < at + config.per_token; ++i) {
        chosen_->factors[size_t(i)] *= weights.expert_scale[chosen_->experts[size_t(i)]];
      }
    }
    if (!weights.shared) continue;
    double sum = 0;
    if (weights.shared_gate != nullptr) {
      const float* row = normalized.values + r * normalized.stride;
      for (int32_t i = 0; i < normalized.cols; ++i) sum += double(weights.shared_gate[i]) * row[i];
    }
    chosen_->shared_factors[size_t(r)] =
        weights.shared_gate == nullptr ? 1.0f : float(1.0 / (1.0 + std::exp(-sum)));
  }
}

void Experts::list_parts(int layer, RowCounts rows, const LinearInput& natural) {
  const ExpertsWeights& weights = *team_.weights().layers[size_t(layer)].experts;
  const Workspace& workspace = context_.workspace;
  const MlpWeights& first = weights.experts.front();
  const int32_t per_token = chosen_->sorted.pairs() / rows.all;
  const RowCounts pairs{chosen_->sorted.pairs(), rows.answers * per_token};
  const LinearInput inner = inputs_.view(workspace.experts_inner, pairs, first.inner(), {&first.down});
  parts_.clear();
  int64_t first_rounded = 0;
  for (const ExpertShare& share : chosen_->sorted.shares()) {
    const LinearInput input = rows_of(share, chosen_->inputs, natural, first_rounded);
    parts_.push_back({.mlp = &weights.experts[size_t(share.expert)],
                      .input = input,
                      .inner = rows_of(share, workspace.experts_inner, inner, first_rounded),
                      .first_pair = share.first_pair});
    first_rounded += Bf16Rows::size(input.rounded.rows, 1);
  }
  if (weights.shared) {
    const MlpWeights& shared = *weights.shared;
    parts_.push_back({.mlp = &shared,
                      .input = natural,
                      .inner = inputs_.view(workspace.inner, rows, shared.inner(), {&shared.down}),
                      .first_pair = -1});
  }
}

// whole: the form that the rows have. first_rounded: rows of bf16 blocks before this share's.
LinearInput Experts::rows_of(const ExpertShare& share, const InputRows& memory, const LinearInput& whole,
                             int64_t first_rounded) const {
  LinearInput input = whole;
  if (whole.quantized) {
    const int32_t integers = whole.quantized_rows == 0 ? 0
                             : whole.rounded.rows == 0 ? share.rows
                                                       : share.answers;
    const int32_t begin = share.first_pair, end = begin + integers;
    const int32_t cols = whole.floats.cols;
    if (whole.one_term.values != nullptr) {
      input.one_term = memory.one_term.view(end, cols, whole.one_term.group, false).part(begin, end);
    }
    if (whole.two_terms.values != nullptr) {
      input.two_terms = memory.two_terms.view(end, cols, whole.two_terms.group, true).part(begin, end);
    }
    input.rounded = Bf16Rows(memory.rounded.data() + first_rounded * cols, share.rows - integers, cols);
    input.quantized_rows = integers;
  } else {
    input.quantized_rows = share.rows;
  }
  input.own_floats = memory.floats.data() + int64_t(share.first_pair) * whole.floats.cols;
  input.floats = {input.own_floats, whole.floats.cols, share.rows, whole.floats.cols};
  return input;
}

void Experts::copy_rows(const LinearInput& natural, Range pairs) const {
  const ExpertRows& sorted = chosen_->sorted;
  for (int32_t pair = pairs.begin; pair < pairs.end; ++pair) {
    const LinearInput& input = parts_[size_t(sorted.share_of(pair))].input;
    const int32_t row = sorted.row(pair), at = pair - parts_[size_t(sorted.share_of(pair))].first_pair;
    if (!natural.quantized) {
      std::copy_n(natural.floats.values + row * natural.floats.stride, natural.floats.cols,
                  input.own_floats + int64_t(at) * input.floats.stride);
    } else if (row < natural.quantized_rows) {
      copy_integers(natural.one_term, row, input.one_term, at);
      copy_integers(natural.two_terms, row, input.two_terms, at);
    } else {
      copy_rounded(natural.rounded, row - natural.quantized_rows, input.rounded, at - input.quantized_rows);
    }
  }
}

void Experts::tap_pairs(int layer) const {
  int32_t* const pairs = tapped(context_, layer, &LayerTap::pairs);
  if (pairs == nullptr || team_.thread() != 0) return;
  const ExpertRows& sorted = chosen_->sorted;
  for (int32_t pair = 0; pair < sorted.pairs(); ++pair) {
    pairs[2 * pair] = sorted.row(pair);
    pairs[2 * pair + 1] = sorted.shares()[size_t(sorted.share_of(pair))].expert;
  }
}

float* Experts::tapped_of(int layer, const Part& part) const {
  if (part.first_pair < 0) return tapped(context_, layer, &LayerTap::shared_down_input);
  float* const all = tapped(context_, layer, &LayerTap::down_input);
  return all == nullptr ? nullptr : all + int64_t(part.first_pair) * part.mlp->inner();
}

// All experts' units are one list, those with most rows first. A unit counts by what it costs, so that
// threads have even shares.
void Experts::take_gate_up(int layer, RowCounts rows) {
  std::vector<GateUpStage> stages;
  std::vector<int32_t> weights, begins;
  SharedWork work{.item_bytes = SIZE_MAX, .rows = rows.all};
  team_.once([&] {
    std::vector<size_t> order(parts_.size());
    std::iota(order.begin(), order.end(), size_t(0));
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return parts_[a].input.rows() > parts_[b].input.rows(); });
    for (const size_t i : order) {
      const Part& part = parts_[i];
      stages.push_back(feed_forward_.stage_of(*part.mlp, part.input, part.inner, tapped_of(layer, part)));
      weights.push_back(std::max(1, part.input.rows() / kRowsForFree));
      begins.push_back(work.items);
      work.items += stages.back().units() * weights.back();
      work.item_bytes = std::min(work.item_bytes, stages.back().unit_bytes());
      work.rounded_rows = std::max(work.rounded_rows, part.input.rounded.rows);
    }
  });
  if (work.items == 0) return;
  team_.take_ranges(work, claim_of(layer, Claim::kExpertsGateUp), [&](Range range, RowPart) {
    for (size_t i = 0; i < stages.size(); ++i) {
      const auto unit_at = [&](int32_t place) {
        return std::clamp((place - begins[i] + weights[i] - 1) / weights[i], 0, stages[i].units());
      };
      if (range.end <= begins[i]) break;
      const Range units{unit_at(std::max(range.begin, begins[i])), unit_at(range.end)};
      if (units.begin < units.end) feed_forward_.take_units(stages[i], units, stages[i].input);
    }
  });
}

// Threads own output tiles and go through the experts, so that nobody else writes there.
void Experts::down(int layer, RowCounts rows, const Target& target) {
  if (!parts_.empty()) {
    const Range own = team_.node_tiles(parts_.front().mlp->down.weight);
    SharedWork work{.items = own.end - own.begin, .rows = rows.all};
    for (const Part& part : parts_) {
      work.item_bytes += part.mlp->down.weight.tile_bytes();
      work.rounded_rows = std::max(work.rounded_rows, part.inner.rounded.rows);
    }
    team_.take_ranges(work, claim_of(layer, Claim::kExpertsDown), [&](Range range, RowPart) {
      const Range tiles{own.begin + range.begin, own.begin + range.end};
      if (!target.accumulate) {
        const int32_t begin = tiles.begin * kTileOutputs;
        const int32_t end = std::min(tiles.end * kTileOutputs, context_.config.hidden_size);
        for (int64_t r = 0; r < rows.all; ++r) {
          std::fill(target.values + r * target.stride + begin, target.values + r * target.stride + end, 0.0f);
        }
      }
      for (const Part& part : parts_) add_rows(part, tiles, target);
    });
  }
  finish_mlp(context_, team_, layer, rows.all);
}

float Experts::factor_of(const Part& part, int32_t row) const {
  return part.first_pair < 0 ? chosen_->shared_factors[size_t(row)]
                             : chosen_->sorted.factor(part.first_pair + row);
}

// As many tiles at a time as stay in the cache.
void Experts::add_rows(const Part& part, Range tiles, const Target& target) const {
  const int32_t rows = part.inner.rows();
  const int most = int(std::max<int64_t>(1, kGateChunkFloats / (int64_t(rows) * kTileOutputs)));
  float* const values = team_.own().gate.data();
  for (int begin = tiles.begin; begin < tiles.end; begin += most) {
    const Linear down = tiles_of(part.mlp->down, {begin, std::min(begin + most, tiles.end)});
    const int64_t stride = int64_t(down.weight.tiles()) * kTileOutputs;
    products_.multiply(part.inner, down, {values, stride, false, /*elsewhere=*/false},
                       {0, down.weight.tiles()});
    for (int32_t r = 0; r < rows; ++r) {
      const int64_t row = part.first_pair < 0 ? r : chosen_->sorted.row(part.first_pair + r);
      context_.kernels.add_scaled(values + r * stride, factor_of(part, r), down.weight.rows,
                                  target.values + row * target.stride + int64_t(begin) * kTileOutputs);
    }
  }
}

}  // namespace redoubt
