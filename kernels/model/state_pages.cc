// The pool of state pages: addresses only (contract: model/state_pages.h).
#include "model/state_pages.h"

#include <sys/mman.h>

#include <cstring>
#include <stdexcept>
#include <string>

#include "contract/attention.h"

namespace redoubt {
namespace {

// Parts and layers begin on a cache line.
size_t whole_lines(size_t floats) { return (floats + 15) / 16 * 16; }

size_t floats_of(int32_t a, int32_t b, int32_t c) { return whole_lines(size_t(a) * size_t(b) * size_t(c)); }

// Before its inputs.
size_t delta_floats(const DeltaConfig& delta) {
  return floats_of(delta.value_heads, delta.key_dim, delta.value_dim) +
         floats_of(delta.value_heads, kPageTokens, delta.value_dim) +
         floats_of(delta.value_heads, kPageTokens, 1) +
         floats_of(delta.key_heads, delta.key_dim, kPageTokens);
}

// Calls place(floats before the inputs, channels of them) for each layer that keeps states.
template <typename Place>
void for_layers(const ModelConfig& config, const Place& place) {
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    const LayerConfig& kind = config.layer(layer);
    if (kind.delta) place(delta_floats(*kind.delta), size_t(kind.delta->channels()));
    if (kind.conv) place(size_t(0), size_t(config.hidden_size));
  }
}

}  // namespace

size_t StatePages::page_bytes(const ModelConfig& config) {
  size_t floats = 0;
  for_layers(config, [&](size_t before, size_t channels) {
    floats += before + whole_lines(size_t(kPageTokens) * channels);
  });
  return floats * sizeof(float);
}

StatePages::StatePages(const ModelConfig& config, int32_t pages)
    : delta_(config.delta() == nullptr ? DeltaConfig{} : *config.delta()),
      pages_(pages),
      page_floats_(page_bytes(config) / sizeof(float)),
      changes_(floats_of(delta_.value_heads, delta_.key_dim, delta_.value_dim)),
      decays_(changes_ + floats_of(delta_.value_heads, kPageTokens, delta_.value_dim)),
      keys_(decays_ + floats_of(delta_.value_heads, kPageTokens, 1)),
      memory_(page_floats_ * size_t(pages)) {
  size_t begin = 0;
  for_layers(config, [&](size_t before, size_t channels) {
    layers_.push_back({.begin = begin, .inputs = before, .channels = channels});
    begin += before + whole_lines(size_t(kPageTokens) * channels);
  });
  madvise(memory_.data(), memory_.bytes(), MADV_DONTDUMP);
}

float* StatePages::changes(int32_t page, int32_t slot, int32_t value_head) const {
  return layer(page, slot) + changes_ + size_t(value_head) * kPageTokens * size_t(delta_.value_dim);
}

float* StatePages::decays(int32_t page, int32_t slot, int32_t value_head) const {
  return layer(page, slot) + decays_ + size_t(value_head) * kPageTokens;
}

float* StatePages::keys(int32_t page, int32_t slot, int32_t key_head) const {
  return layer(page, slot) + keys_ + size_t(key_head) * kPageTokens * size_t(delta_.key_dim);
}

float* StatePages::inputs(int32_t page, int32_t slot, int32_t token) const {
  const Place& place = layers_[size_t(slot)];
  return layer(page, slot) + place.inputs + size_t(token) * place.channels;
}

void StatePages::check(int32_t page) const {
  if (page < 0 || page >= pages_) {
    throw std::invalid_argument("state page " + std::to_string(page) + " is not in 0 .. " +
                                std::to_string(pages_));
  }
}

void StatePages::copy_page(int32_t source, int32_t target) {
  check(source);
  check(target);
  if (source == target) return;
  std::memcpy(memory_.data() + size_t(target) * page_floats_, memory_.data() + size_t(source) * page_floats_,
              page_floats_ * sizeof(float));
}

void StatePages::clear_page(int32_t page) {
  check(page);
  std::memset(memory_.data() + size_t(page) * page_floats_, 0, page_floats_ * sizeof(float));
}

}  // namespace redoubt
