// The pool of KV pages. A page holds kPageTokens tokens of all layers of a group (model/page_groups.h) and
// all their heads together, so that one page is one piece of memory to copy. The blocks inside are laid out
// as contract/attention.h says. Does not know which sequence has which page. Core dumps leave the pool out:
// it holds what users wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "contract/attention.h"
#include "machine/aligned_memory.h"
#include "model/page_groups.h"

namespace redoubt {

struct NamedKvType {
  KvType type;
  const char* name;
};
inline constexpr NamedKvType kKvTypes[] = {
    {KvType::kInt16, "int16"}, {KvType::kBf16, "bf16"}, {KvType::kInt8, "int8"}, {KvType::kFp32, "fp32"}};

// Throws std::invalid_argument for a name that no type has.
KvType kv_type_from_name(std::string_view name);
const char* kv_type_name(KvType type);

class KvCache {
 public:
  KvCache(KvType type, PageGroups groups, int32_t kv_heads, int32_t head_dim, int32_t pages);

  static size_t page_bytes(KvType type, const PageGroups& groups, int32_t kv_heads, int32_t head_dim) {
    return kv_block_bytes(type, head_dim) * size_t(groups.slots) * size_t(kv_heads);
  }
  KvType type() const { return type_; }
  const PageGroups& groups() const { return groups_; }
  int32_t slots() const { return groups_.slots; }
  int32_t kv_heads() const { return kv_heads_; }
  int32_t head_dim() const { return head_dim_; }
  int32_t pages() const { return pages_; }
  size_t bytes() const { return memory_.bytes(); }
  // page_table: of the layer's group. The caller has checked that the entries it reads are in 0 .. pages().
  KvView view(int32_t layer, int32_t kv_head, const int32_t* page_table) const {
    return slot_view(groups_.of_layer[size_t(layer)].slot, kv_head, page_table);
  }
  KvView slot_view(int32_t slot, int32_t kv_head, const int32_t* page_table) const;
  // All throw std::invalid_argument for a page that is not there.
  void check(int32_t page) const;
  void copy_page(int32_t source, int32_t target);
  void clear_page(int32_t page);

 private:
  KvType type_;
  PageGroups groups_;
  int32_t kv_heads_;
  int32_t head_dim_;
  int32_t pages_;
  size_t page_bytes_;
  AlignedMemory<std::byte> memory_;
};

}  // namespace redoubt
