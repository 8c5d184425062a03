// The pool of KV pages. A page holds kPageTokens tokens of all layers of a group (model/page_groups.h) and
// all their heads together, so that one page is one piece of memory to copy. The blocks inside are laid out
// as contract/attention.h says. Does not know which sequence has which page. Core dumps leave the pool out:
// it holds what users wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

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
  KvCache(KvType type, PageGroups groups, int32_t pages);

  // Bytes of a page, for the group with the largest layers.
  static size_t page_bytes(KvType type, const PageGroups& groups);
  KvType type() const { return type_; }
  const PageGroups& groups() const { return groups_; }
  const KvShape& shape(int32_t layer) const { return groups_.of_layer[size_t(layer)].shape; }
  int32_t pages() const { return pages_; }
  size_t bytes() const { return memory_.bytes(); }
  // page_table: that of the layer's group. The caller has checked that the entries it reads are in 0 ..
  // pages().
  KvView view(int32_t layer, int32_t kv_head, const int32_t* page_table) const;
  // All throw std::invalid_argument for a page out of range.
  void check(int32_t page) const;
  void copy_page(int32_t source, int32_t target);
  void clear_page(int32_t page);
  // Gives the memory of all pages back to the system; what they held is lost.
  void release() const { memory_.release(); }

 private:
  KvType type_;
  PageGroups groups_;
  std::vector<size_t> layer_offsets_;  // bytes from a page's begin
  int32_t pages_;
  size_t page_bytes_;
  AlignedMemory<std::byte> memory_;
};

}  // namespace redoubt
