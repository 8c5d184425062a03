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

// Page table entry where no page is needed.
inline constexpr int32_t kNoPage = -1;

// The size of a token's keys and values in a layer; nothing for a layer with states.
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

// Window of the states' group: after n full pages, page n - 1 and later ones are needed.
inline constexpr int32_t kStateWindow = 2;

struct PageGroups {
  std::vector<int32_t> windows;  // [groups], keys that a token sees, itself included; 0: all
  int32_t state_group = -1;      // the last one, if there are states
  std::vector<PageSlot> of_layer;

  int32_t count() const { return int32_t(windows.size()); }
  // Number of groups of keys and values.
  int32_t kv_count() const { return count() - (state_group < 0 ? 0 : 1); }
  // The first page of a group that a token at `position` sees, with all later ones. For states it is the page
  // before the token's own, whose end state is where the computation starts.
  int32_t first_page(int32_t group, int32_t position) const {
    if (group == state_group) return position < kPageTokens ? 0 : position / kPageTokens - 1;
    const int32_t window = windows[size_t(group)];
    return window == 0 || position < window ? 0 : (position + 1 - window) / kPageTokens;
  }
};

// Makes one group that keeps all keys of all layers, whatever their windows and shapes, and the states'
// group. Layers that share keys share a slot.
PageGroups one_page_group(const ModelConfig& config);
// Makes one group of layers that all have attention and their own keys.
PageGroups one_page_group(const std::vector<KvShape>& layers);

// Makes groups by window and shape, those with full attention first. A window that max_context_tokens does
// not exceed counts as full attention. Pages are as large as possible without wasting much.
PageGroups page_groups_of(const ModelConfig& config, int32_t max_context_tokens);

}  // namespace redoubt
