// Which layers share a page of keys and values. Every page has the same number of slots, one a layer. Layers
// that see the same keys are put into groups of so many, and each group has a page table of its own: pages
// that no later token of a group's layers sees can be used again. Knows numbers of layers and windows only.
#pragma once

#include <cstdint>
#include <vector>

#include "contract/attention.h"
#include "model/config.h"

namespace redoubt {

struct PageSlot {
  int32_t group = 0;
  int32_t slot = 0;  // of the page
};

struct PageGroups {
  int32_t slots = 0;             // of a page; a group's last ones may be nobody's
  std::vector<int32_t> windows;  // [groups], keys that a token sees, itself included; 0: all
  std::vector<PageSlot> of_layer;

  int32_t count() const { return int32_t(windows.size()); }
  // The first page of a group that a token at `position` sees, and all later ones.
  int32_t first_page(int32_t group, int32_t position) const {
    const int32_t window = windows[size_t(group)];
    return window == 0 || position < window ? 0 : (position + 1 - window) / kPageTokens;
  }
};

// One group, which keeps all keys of all layers whatever they see.
PageGroups one_page_group(int32_t layers);

// Groups by window, those that see all keys first. A window that no context of max_context_tokens exceeds is
// none. Pages are as large as they can be while few slots are nobody's.
PageGroups page_groups_of(const ModelConfig& config, int32_t max_context_tokens);

}  // namespace redoubt
