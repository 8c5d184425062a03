// Products, convolution and recurrence of Gated DeltaNet (contract: step/delta.h).
#include "step/delta.h"

#include <algorithm>
#include <cmath>

#include "contract/delta.h"

namespace redoubt {
namespace {

constexpr double kLog2e = 1.4426950408889634;

// log(1 + e^x), for any x.
double softplus(double x) { return x > 30.0 ? x : std::log1p(std::exp(x)); }

}  // namespace

// In floats, one part after another.
struct Delta::Scratch {
  float* kernel;     // delta_scratch_floats
  float* states[2];  // of pages without an entry in the page table, in turns
  float* keys;       // likewise
  float* changes;
  float* decays;
  float* betas;
  float* history;  // [taps - 1][the larger dim]

  Scratch(float* memory, const DeltaConfig& config) {
    const auto take = [&memory](size_t floats) {
      float* const begin = memory;
      memory += floats;
      return begin;
    };
    const size_t state = size_t(config.key_dim) * size_t(config.value_dim);
    kernel = take(delta_scratch_floats(config.value_dim));
    for (float*& each : states) each = take(state);
    keys = take(size_t(config.key_dim) * kPageTokens);
    changes = take(size_t(config.value_dim) * kPageTokens);
    decays = take(kPageTokens);
    betas = take(kPageTokens);
    history = take(0);
  }
};

Delta::Sequence Delta::sequence_of(int32_t index) const {
  const Batch& batch = context_.batch;
  const int64_t row = int64_t(context_.kv_cache.groups().state_group) * context_.max_sequences + index;
  const int32_t begin = batch.context_lengths[index];
  return {.first_row = context_.plan.all().first_row[size_t(index)],
          .begin = begin,
          .end = begin + batch.query_lengths[index],
          .pages = context_.page_tables + row * context_.pages_per_sequence};
}

float* Delta::qkv_row(int64_t row) const {
  return context_.workspace.qkv.data() + row * context_.workspace.qkv_stride;
}

void Delta::project(int layer) {
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  const Workspace& workspace = context_.workspace;
  const RowCounts rows = context_.plan.all().counts();
  const FloatRows normalized =
      inputs_.normalized({context_.hidden(), workspace.hidden_stride}, rows.all, weights.attention_norm);
  score(layer, normalized);
  const LinearInput input =
      inputs_.prepare({normalized.values, normalized.stride}, rows, context_.config.hidden_size, Norm{},
                      {&weights.delta->qkv, &weights.gate});
  const Segment segments[] = {{weights.delta->qkv, input, {workspace.qkv.data(), workspace.qkv_stride}},
                              {weights.gate, input, {workspace.gates.data(), workspace.gates_stride}}};
  products_.run(segments, claim_of(layer, Claim::kQkv));
  team_.finish_stage(Stage::kQkv, team_.upcoming(context_.batch.tokens, {&weights.output.weight}));
}

// Threads share rows rather than the few tiles.
void Delta::score(int layer, const FloatRows& rows) {
  const DeltaWeights& weights = *team_.weights().layers[size_t(layer)].delta;
  const Workspace& workspace = context_.workspace;
  float* const betas = workspace.factors.data();
  float* const decays = betas + config_of(layer).value_heads;
  LinearInput input;
  input.floats = rows;
  input.quantized_rows = rows.rows;
  if (rows.rows <= kPrivateRows || context_.nodes.nodes() > 1) {
    const Segment segments[] = {{weights.beta, input, {betas, workspace.factors_stride}},
                                {weights.decay, input, {decays, workspace.factors_stride}}};
    return products_.run(segments, claim_of(layer, Claim::kDeltaFactors));
  }
  team_.share(rows.rows, [&](Range mine) {
    const int64_t begin = mine.begin, stride = workspace.factors_stride;
    input.floats = {rows.values + begin * rows.stride, rows.stride, mine.end - mine.begin, rows.cols};
    products_.multiply(input, weights.beta, {betas + begin * stride, stride},
                       {0, weights.beta.weight.tiles()});
    products_.multiply(input, weights.decay, {decays + begin * stride, stride},
                       {0, weights.decay.weight.tiles()});
  });
}

void Delta::convolve(int layer) {
  const DeltaConfig& config = config_of(layer);
  const int heads = 2 * config.key_heads + config.value_heads;
  team_.once([&] {
    const BasicRange<int64_t> mine =
        share(int64_t(context_.batch.sequences) * heads, team_.thread(), team_.threads());
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      convolve_head(layer, sequence_of(int32_t(i / heads)), int(i % heads));
    }
  });
  team_.finish_stage(Stage::kStates);
}

// head: of the queries', then the keys', then the values'.
void Delta::convolve_head(int layer, const Sequence& sequence, int head) {
  const DeltaConfig& config = config_of(layer);
  const StatePages& pages = context_.state_pages;
  const bool is_value = head >= 2 * config.key_heads;
  const int32_t dim = is_value ? config.value_dim : config.key_dim;
  const int32_t channel = is_value ? 2 * config.keys() + (head - 2 * config.key_heads) * dim : head * dim;
  const int32_t slot = slot_of(layer), count = sequence.end - sequence.begin;
  float* const rows = qkv_row(sequence.first_row) + channel;
  float* const history = Scratch(team_.own().delta.data(), config).history;
  for (int32_t i = 0; i < config.taps - 1; ++i) {
    const int32_t position = sequence.begin - (config.taps - 1) + i;
    float* const to = history + i * dim;
    if (position < 0) {
      std::fill_n(to, dim, 0.0f);
    } else {
      const int32_t page = sequence.page(position / kPageTokens);
      std::copy_n(pages.inputs(page, slot, position % kPageTokens) + channel, dim, to);
    }
  }
  for (int64_t r = 0; r < count; ++r) {
    const int32_t position = sequence.begin + int32_t(r), page = sequence.page(position / kPageTokens);
    if (page < 0) continue;
    std::copy_n(rows + r * context_.workspace.qkv_stride, dim,
                pages.inputs(page, slot, position % kPageTokens) + channel);
  }
  context_.kernels.convolve_silu(
      {.rows = rows,
       .history = history,
       .weights = team_.weights().layers[size_t(layer)].delta->convolution.data() + channel,
       .stride = context_.workspace.qkv_stride,
       .weight_stride = config.channels(),
       .count = count,
       .channels = dim,
       .taps = config.taps});
  if (is_value) return;
  const bool is_query = head < config.key_heads;
  const float factor = is_query ? 1.0f / std::sqrt(float(config.key_dim)) : 1.0f;
  for (int64_t r = 0; r < count; ++r) {
    context_.kernels.l2_normalize(rows + r * context_.workspace.qkv_stride, factor, dim);
  }
  if (!is_query) store_keys(layer, sequence, head - config.key_heads);
}

void Delta::store_keys(int layer, const Sequence& sequence, int key_head) {
  const DeltaConfig& config = config_of(layer);
  for (int32_t position = sequence.begin; position < sequence.end; ++position) {
    const int32_t page = sequence.page(position / kPageTokens);
    if (page < 0) continue;
    const float* const key = qkv_row(sequence.first_row + position - sequence.begin) + config.keys() +
                             int64_t(key_head) * config.key_dim;
    float* const to = context_.state_pages.keys(page, slot_of(layer), key_head) + position % kPageTokens;
    for (int32_t d = 0; d < config.key_dim; ++d) to[d * kPageTokens] = key[d];
  }
}

// Tasks are a sequence's value heads. The plan lists sequences by falling length, and threads take turns.
void Delta::run_heads(int layer) {
  const int heads = config_of(layer).value_heads;
  const std::vector<int32_t>& sequences = context_.plan.longest_first();
  const int64_t tasks = int64_t(sequences.size()) * heads;
  team_.take_pieces(claim_of(layer, Claim::kAttention), [&](int owner, int piece) {
    const int64_t task = owner + int64_t(piece) * team_.threads();
    if (task >= tasks) return false;
    run_head(layer, sequence_of(sequences[size_t(task / heads)]), int(task % heads));
    return true;
  });
  team_.finish_stage(Stage::kStates);
}

void Delta::run_head(int layer, const Sequence& sequence, int value_head) {
  const DeltaConfig& config = config_of(layer);
  const StatePages& pages = context_.state_pages;
  const Workspace& workspace = context_.workspace;
  const int32_t slot = slot_of(layer), key_head = value_head / (config.value_heads / config.key_heads);
  const Scratch scratch(team_.own().delta.data(), config);
  DeltaPage task{.row_stride = workspace.qkv_stride,
                 .output_stride = workspace.attention_stride,
                 .key_dim = config.key_dim,
                 .value_dim = config.value_dim};
  const int32_t first = sequence.begin / kPageTokens, last = (sequence.end - 1) / kPageTokens;
  if (first > 0) task.state = pages.end_state(sequence.page(first - 1), slot, value_head);
  for (int32_t index = first; index <= last; ++index) {
    const int32_t start = index * kPageTokens, page = sequence.page(index);
    task.begin = std::max(sequence.begin - start, 0);
    task.end = std::min(sequence.end - start, kPageTokens);
    const int64_t row = sequence.first_row + start + task.begin - sequence.begin;
    task.query_rows = qkv_row(row) + int64_t(key_head) * config.key_dim;
    task.key_rows = task.query_rows + config.keys();
    task.value_rows = qkv_row(row) + 2 * config.keys() + int64_t(value_head) * config.value_dim;
    task.outputs = workspace.attention.data() + row * workspace.attention_stride +
                   int64_t(value_head) * config.value_dim;
    const bool has_page = page >= 0;
    float* const decays = has_page ? pages.decays(page, slot, value_head) : scratch.decays;
    task.changes = has_page ? pages.changes(page, slot, value_head) : scratch.changes;
    task.end_state = has_page ? pages.end_state(page, slot, value_head) : scratch.states[index % 2];
    task.keys = has_page ? pages.keys(page, slot, key_head) : scratch.keys;
    if (!has_page) {
      for (int32_t d = 0; d < config.key_dim; ++d) {
        for (int64_t t = 0; t < task.end; ++t) {
          scratch.keys[d * kPageTokens + t] = task.key_rows[t * task.row_stride + d];
        }
      }
    }
    fill_factors(layer, row, value_head, {task.begin, task.end}, scratch.betas, decays);
    task.decays = decays;
    task.betas = scratch.betas;
    context_.kernels.delta_page(task, scratch.kernel);
    finish_rows(layer, row, task.end - task.begin, value_head);
    task.state = task.end_state;
  }
}

void Delta::fill_factors(int layer, int64_t first_row, int value_head, Range tokens, float* betas,
                         float* decays) const {
  const DeltaWeights& weights = *team_.weights().layers[size_t(layer)].delta;
  const Workspace& workspace = context_.workspace;
  const double rate = double(weights.decays[value_head]) * kLog2e, bias = weights.decay_bias[value_head];
  float sum = tokens.begin == 0 ? 0.0f : decays[tokens.begin - 1];
  for (int t = tokens.begin; t < tokens.end; ++t) {
    const float* const factors =
        workspace.factors.data() + (first_row + t - tokens.begin) * workspace.factors_stride + value_head;
    betas[t - tokens.begin] = float(1.0 / (1.0 + std::exp(-double(factors[0]))));
    const float decay = float(-rate * softplus(double(factors[config_of(layer).value_heads]) + bias));
    // NaN stays NaN.
    sum += decay < kLeastDecay ? kLeastDecay : decay > 0.0f ? 0.0f : decay;
    decays[t] = sum;
  }
}

// The gated norm of the outputs.
void Delta::finish_rows(int layer, int64_t first_row, int32_t rows, int value_head) {
  const DeltaConfig& config = config_of(layer);
  const Workspace& workspace = context_.workspace;
  const KernelTable& kernels = context_.kernels;
  const int64_t column = int64_t(value_head) * config.value_dim;
  float normalized[kMostDeltaDim];
  for (int64_t row = first_row; row < first_row + rows; ++row) {
    float* const output = workspace.attention.data() + row * workspace.attention_stride + column;
    const float* const gate = workspace.gates.data() + row * workspace.gates_stride + column;
    kernels.rms_norm(output, team_.weights().layers[size_t(layer)].delta->norm, context_.config.norm_epsilon,
                     config.value_dim, normalized);
    kernels.activate[size_t(Activation::kSilu)](gate, normalized, config.value_dim, output);
  }
}

}  // namespace redoubt
