// Products and rows of a gated convolution (contract: step/gated_convolution.h).
#include "step/gated_convolution.h"

#include <algorithm>

#include "contract/convolution.h"

namespace redoubt {
namespace {

// Of one task: rows of so many fit the first-level cache, and there are enough tasks for all threads.
constexpr int32_t kChannels = 256;

}  // namespace

void GatedConvolution::project(int layer) {
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  const Workspace& workspace = context_.workspace;
  const LinearInput input =
      inputs_.prepare({context_.hidden(), workspace.hidden_stride}, context_.plan.all().counts(),
                      context_.config.hidden_size, weights.attention_norm, {&weights.conv->input});
  const Segment segments[] = {{weights.conv->input, input, {workspace.qkv.data(), workspace.qkv_stride}}};
  products_.run(segments, claim_of(layer, Claim::kQkv));
  team_.finish_stage(Stage::kQkv, team_.upcoming(context_.batch.tokens, {&weights.output.weight}));
}

void GatedConvolution::convolve(int layer) {
  const int32_t hidden = context_.config.hidden_size, blocks = (hidden + kChannels - 1) / kChannels;
  team_.once([&] {
    const BasicRange<int64_t> mine =
        share(int64_t(context_.batch.sequences) * blocks, team_.thread(), team_.threads());
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const int32_t begin = int32_t(i % blocks) * kChannels;
      convolve_channels(layer, int32_t(i / blocks), {begin, std::min(begin + kChannels, hidden)});
    }
  });
  team_.finish_stage(Stage::kStates);
}

void GatedConvolution::convolve_channels(int layer, int32_t sequence, Range channels) {
  const Workspace& workspace = context_.workspace;
  const ConvWeights& weights = *team_.weights().layers[size_t(layer)].conv;
  const PageGroups& groups = context_.kv_cache.groups();
  const int32_t hidden = context_.config.hidden_size, taps = context_.config.layer(layer).conv->taps;
  const int32_t slot = groups.of_layer[size_t(layer)].slot;
  const int32_t* const pages =
      context_.page_tables +
      (int64_t(groups.state_group) * context_.max_sequences + sequence) * context_.pages_per_sequence;
  const auto kept = [&](int32_t position) -> float* {
    const int32_t page = pages[position / kPageTokens];
    if (page < 0) return nullptr;
    return context_.state_pages.inputs(page, slot, position % kPageTokens) + channels.begin;
  };
  const int32_t begin = context_.batch.context_lengths[sequence];
  const int64_t first_row = context_.plan.all().first_row[size_t(sequence)];
  float* const row = workspace.qkv.data() + first_row * workspace.qkv_stride + channels.begin;
  GatedRows rows{
      .before = row,
      .behind = row + hidden,
      .values = row + 2 * int64_t(hidden),
      .stride = workspace.qkv_stride,
      .taps = weights.taps + channels.begin,
      .tap_stride = hidden,
      .bias = weights.bias == nullptr ? nullptr : weights.bias + channels.begin,
      .output = workspace.attention.data() + first_row * workspace.attention_stride + channels.begin,
      .output_stride = workspace.attention_stride,
      .count = context_.batch.query_lengths[sequence],
      .channels = channels.end - channels.begin,
      .tap_count = taps};
  for (int32_t i = 0; i < taps - 1; ++i) {
    const int32_t position = begin - (taps - 1) + i;
    if (position >= 0) rows.history[i] = kept(position);
  }
  context_.kernels.convolve_gated(rows);
  for (int32_t r = 0; r < rows.count; ++r) {
    float* const to = kept(begin + r);
    if (to != nullptr) std::copy_n(rows.values + r * rows.stride, rows.channels, to);
  }
}

}  // namespace redoubt
