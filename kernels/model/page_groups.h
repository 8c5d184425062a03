// Which layers share a page of keys and values. A page belongs to a group of layers that see the same keys
// and have heads of one shape; each group has a page table of its own: pages that no later token of a group's
// layers sees can be used again. All pages are of one size, so groups of larger heads have fewer layers.
// Layers that keep states are the last group, whose pages are in another pool (model/state_pages.h). Knows
// the layers' windows and shapes only.
#pragma once

#include <cstdint>
#include <vector>

#include "contract/attention.h"
#include "model/config.h"

namespace redoubt {

// In place of a page in a page table, where none is needed.
inline constexpr int32_t kNoPage = -1;

// What a layer keeps of a token; nothing where it keeps states.
struct KvShape {
  int32_t kv_heads = 0;
  int32_t head_dim = 0;

  int64_t numbers() const { return int64_t(kv_heads) * head_dim; }
  auto operator<=>(const KvShape&) const = default;
};

struct PageSlot {
  int32_t group = 0;
  int32_t slot = 0;  // of the page
  KvShape shape;
  bool stores = true;  // or it reads another layer's keys and values, whose slot this is
};

// What the states' group is said to see: behind n full pages, page n - 1 and what comes after it.
inline constexpr int32_t kStateWindow = 2;

struct PageGroups {
  std::vector<int32_t> windows;  // [groups], keys that a token sees, itself included; 0: all
  int32_t state_group = -1;      // the last one, if there are states
  std::vector<PageSlot> of_layer;

  int32_t count() const { return int32_t(windows.size()); }
  // Those of keys and values.
  int32_t kv_count() const { return count() - (state_group < 0 ? 0 : 1); }
  // The first page of a group that a token at `position` sees, and all later ones. Of states, the page before
  // its own, whose end is the start of what it computes.
  int32_t first_page(int32_t group, int32_t position) const {
    if (group == state_group) return position < kPageTokens ? 0 : position / kPageTokens - 1;
    const int32_t window = windows[size_t(group)];
    return window == 0 || position < window ? 0 : (position + 1 - window) / kPageTokens;
  }
};

// One group, which keeps all keys of all layers whatever they see and whatever shapes they have, where layers
// that share keys share a slot; and the states'.
PageGroups one_page_group(const ModelConfig& config);
// Of layers that all have attention and keys of their own.
PageGroups one_page_group(const std::vector<KvShape>& layers);

// Groups by window and shape, those that see all keys first. A window that no context of max_context_tokens
// exceeds is none. Pages are as large as they can be while little of them is nobody's.
PageGroups page_groups_of(const ModelConfig& config, int32_t max_context_tokens);

}  // namespace redoubt
