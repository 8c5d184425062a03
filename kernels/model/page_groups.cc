// Groups layers by their windows and shapes.
#include "model/page_groups.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>

namespace redoubt {
namespace {

// Numbers of a page that are nobody's cost memory with every page: at most one in so many of all layers', and
// of the layers that see all keys, whose pages are the most. Where shapes differ no size of pages may waste
// so little of the latter; then the next limit holds, and after the last one none.
constexpr int64_t kUnusedOfAll = 6;
constexpr int64_t kUnusedOfFull[] = {20, 5, 2, 1};

// Layers by window, 0 first and then the largest, and by shape.
struct Kind {
  int32_t window;
  KvShape shape;
  bool operator<(const Kind& other) const {
    return std::tuple(window != 0, -window, shape) <
           std::tuple(other.window != 0, -other.window, other.shape);
  }
};
using LayersByKind = std::map<Kind, std::vector<int32_t>>;

// How many layers of a shape have room in a page of so many numbers.
int32_t layers_of_page(int64_t page, const KvShape& shape) { return int32_t(page / shape.numbers()); }

int32_t groups_for(size_t layers, int32_t slots) { return (int32_t(layers) + slots - 1) / slots; }

bool wastes_little(const LayersByKind& kinds, int64_t page, int64_t unused_of_full) {
  int64_t used = 0, unused = 0, full = 0, unused_full = 0;
  for (const auto& [kind, layers] : kinds) {
    const int64_t of_it = int64_t(layers.size()) * kind.shape.numbers();
    const int64_t paged = groups_for(layers.size(), layers_of_page(page, kind.shape)) * page;
    used += of_it;
    unused += paged - of_it;
    if (kind.window != 0) continue;
    full += of_it;
    unused_full += paged - of_it;
  }
  return unused_full * unused_of_full <= full && unused * kUnusedOfAll <= used;
}

// In numbers of one token's keys: as many as some layers of one kind fill.
int64_t page_size(const LayersByKind& kinds) {
  std::set<int64_t, std::greater<>> sizes;
  int64_t least = 0;
  for (const auto& [kind, layers] : kinds) {
    const int64_t numbers = kind.shape.numbers();
    least = std::max(least, numbers);
    for (size_t i = 1; i <= layers.size(); ++i) sizes.insert(int64_t(i) * numbers);
  }
  for (const int64_t limit : kUnusedOfFull) {
    for (const int64_t size : sizes) {
      if (size >= least && wastes_little(kinds, size, limit)) return size;
    }
  }
  return least;
}

void add_groups(const Kind& kind, const std::vector<int32_t>& layers, int32_t slots, PageGroups& groups) {
  const int32_t first = groups.count();
  for (size_t i = 0; i < layers.size(); ++i) {
    const PageSlot slot{first + int32_t(i) / slots, int32_t(i) % slots, kind.shape};
    groups.of_layer[size_t(layers[i])] = slot;
  }
  groups.windows.insert(groups.windows.end(), size_t(groups_for(layers.size(), slots)), kind.window);
}

KvShape kv_shape(const ModelConfig& config, int32_t layer) {
  return {config.shape(layer).kv_heads, config.shape(layer).head_dim};
}

void add_states(const ModelConfig& config, PageGroups& groups) {
  if (!config.keeps_states()) return;
  groups.state_group = groups.count();
  groups.windows.push_back(kStateWindow);
  int32_t slot = 0;
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    if (config.layer(layer).keeps_state())
      groups.of_layer[size_t(layer)] = {groups.state_group, slot++, {}, false};
  }
}

void share_slots(const ModelConfig& config, PageGroups& groups) {
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    const int32_t keys_of = config.layer(layer).attention.keys_of;
    if (keys_of < 0) continue;
    groups.of_layer[size_t(layer)] = groups.of_layer[size_t(keys_of)];
    groups.of_layer[size_t(layer)].stores = false;
  }
}

// Of an encoder: each layer writes over the one before it, so that a page has room for the largest.
PageGroups one_layers_page(const ModelConfig& config) {
  PageGroups groups{.windows = {0}, .of_layer = {}};
  int32_t largest = 0;
  for (int32_t layer = 1; layer < config.layers; ++layer) {
    if (kv_shape(config, layer).numbers() > kv_shape(config, largest).numbers()) largest = layer;
  }
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    groups.of_layer.push_back({0, 0, kv_shape(config, layer), layer == largest});
  }
  return groups;
}

}  // namespace

PageGroups one_page_group(const std::vector<KvShape>& layers) {
  PageGroups groups{.windows = {0}, .of_layer = {}};
  for (const KvShape& shape : layers) groups.of_layer.push_back({0, int32_t(groups.of_layer.size()), shape});
  return groups;
}

PageGroups one_page_group(const ModelConfig& config) {
  if (config.encoder) return one_layers_page(config);
  PageGroups groups{.windows = {0}, .of_layer = {}};
  int32_t slots = 0;
  for (int32_t layer = 0; layer < config.computed_layers(); ++layer) {
    const bool stores = !config.layer(layer).keeps_state() && config.layer(layer).attention.keys_of < 0;
    groups.of_layer.push_back(stores ? PageSlot{0, slots++, kv_shape(config, layer)} : PageSlot{});
  }
  share_slots(config, groups);
  add_states(config, groups);
  return groups;
}

PageGroups page_groups_of(const ModelConfig& config, int32_t max_context_tokens) {
  LayersByKind kinds;
  for (int32_t layer = 0; layer < config.computed_layers(); ++layer) {
    if (config.layer(layer).keeps_state() || config.layer(layer).attention.keys_of >= 0) continue;
    const int32_t window = config.layer(layer).attention.window;
    kinds[{window >= max_context_tokens ? 0 : window, kv_shape(config, layer)}].push_back(layer);
  }
  if (kinds.empty()) return one_page_group(config);
  const int64_t page = page_size(kinds);
  PageGroups groups;
  groups.of_layer.resize(size_t(config.computed_layers()));
  for (const auto& [kind, layers] : kinds) {
    add_groups(kind, layers, layers_of_page(page, kind.shape), groups);
  }
  share_slots(config, groups);
  add_states(config, groups);
  return groups;
}

}  // namespace redoubt
