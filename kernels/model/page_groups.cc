// Groups layers by their windows.
#include "model/page_groups.h"

#include <functional>
#include <map>

namespace redoubt {
namespace {

// Slots that are nobody's cost memory with every page: at most one in so many of the layers that see all
// keys, whose pages are the most, and of all layers.
constexpr int32_t kUnusedOfFull = 20;
constexpr int32_t kUnusedOfAll = 6;

// Layers by window: 0 first, and then the largest.
using LayersByWindow = std::map<int32_t, std::vector<int32_t>, std::greater<>>;

int32_t groups_for(size_t layers, int32_t slots) { return (int32_t(layers) + slots - 1) / slots; }

bool wastes_little(const LayersByWindow& kinds, int32_t layers, int32_t slots) {
  int32_t unused = 0;
  for (const auto& [window, of_kind] : kinds) {
    const int32_t of_it = groups_for(of_kind.size(), slots) * slots - int32_t(of_kind.size());
    if (window == 0 && of_it * kUnusedOfFull > int32_t(of_kind.size())) return false;
    unused += of_it;
  }
  return unused * kUnusedOfAll <= layers;
}

void add_groups(int32_t window, const std::vector<int32_t>& layers, PageGroups& groups) {
  const int32_t first = groups.count();
  for (size_t i = 0; i < layers.size(); ++i) {
    groups.of_layer[size_t(layers[i])] = {first + int32_t(i) / groups.slots, int32_t(i) % groups.slots};
  }
  groups.windows.insert(groups.windows.end(), size_t(groups_for(layers.size(), groups.slots)), window);
}

}  // namespace

PageGroups one_page_group(int32_t layers) {
  PageGroups groups{.slots = layers, .windows = {0}, .of_layer = {}};
  for (int32_t layer = 0; layer < layers; ++layer) groups.of_layer.push_back({0, layer});
  return groups;
}

PageGroups page_groups_of(const ModelConfig& config, int32_t max_context_tokens) {
  LayersByWindow kinds;
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    const int32_t window = config.layer(layer).attention.window;
    kinds[window >= max_context_tokens ? 0 : window].push_back(layer);
  }
  PageGroups groups;
  groups.slots = config.layers;
  while (!wastes_little(kinds, config.layers, groups.slots)) --groups.slots;
  groups.of_layer.resize(size_t(config.layers));
  if (const auto full = kinds.find(0); full != kinds.end()) add_groups(0, full->second, groups);
  for (const auto& [window, layers] : kinds) {
    if (window != 0) add_groups(window, layers, groups);
  }
  return groups;
}

}  // namespace redoubt
