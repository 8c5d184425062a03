// The pool of KV pages: addresses only. Does not know which sequence has which page.
#include "model/kv_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace redoubt {
namespace {

size_t layer_bytes(KvType type, const KvShape& shape) {
  return size_t(shape.kv_heads) * kv_block_bytes(type, shape.head_dim);
}

}  // namespace

KvType kv_type_from_name(std::string_view name) {
  std::string known;
  for (const NamedKvType& each : kKvTypes) {
    if (name == each.name) return each.type;
    known += (known.empty() ? "" : ", ") + std::string(each.name);
  }
  throw std::invalid_argument("kv_type: '" + std::string(name) + "' is not " + known + " or auto");
}

const char* kv_type_name(KvType type) {
  for (const NamedKvType& each : kKvTypes) {
    if (type == each.type) return each.name;
  }
  return "?";
}

KvCache::KvCache(KvType type, PageGroups groups, int32_t pages)
    : type_(type),
      groups_(std::move(groups)),
      layer_offsets_(groups_.of_layer.size()),
      pages_(pages),
      page_bytes_(page_bytes(type, groups_)),
      memory_(page_bytes_ * size_t(pages)) {
  madvise(memory_.data(), memory_.bytes(), MADV_DONTDUMP);
  // A group's slots are all of one shape, unless there is one group: then they are in the layers' order.
  std::vector<size_t> of_slot;
  size_t end = 0;
  for (size_t i = 0; i < layer_offsets_.size(); ++i) {
    const PageSlot& slot = groups_.of_layer[i];
    const size_t bytes = layer_bytes(type, slot.shape);
    of_slot.resize(std::max(of_slot.size(), size_t(slot.slot) + 1));
    if (slot.stores) of_slot[size_t(slot.slot)] = end;
    if (slot.stores) end += bytes;
    layer_offsets_[i] = groups_.kv_count() > 1 ? size_t(slot.slot) * bytes : of_slot[size_t(slot.slot)];
  }
}

size_t KvCache::page_bytes(KvType type, const PageGroups& groups) {
  std::vector<size_t> of_group(groups.windows.size());
  for (const PageSlot& slot : groups.of_layer) {
    if (slot.stores) of_group[size_t(slot.group)] += layer_bytes(type, slot.shape);
  }
  return *std::max_element(of_group.begin(), of_group.end());
}

KvView KvCache::view(int32_t layer, int32_t kv_head, const int32_t* page_table) const {
  const int32_t head_dim = shape(layer).head_dim;
  KvView view;
  view.base =
      memory_.data() + layer_offsets_[size_t(layer)] + size_t(kv_head) * kv_block_bytes(type_, head_dim);
  view.page_stride = int64_t(page_bytes_);
  view.page_table = page_table;
  view.type = type_;
  view.head_dim = head_dim;
  return view;
}

void KvCache::check(int32_t page) const {
  if (page < 0 || page >= pages_) {
    throw std::invalid_argument("page " + std::to_string(page) + " is not in 0 .. " + std::to_string(pages_));
  }
}

void KvCache::copy_page(int32_t source, int32_t target) {
  check(source);
  check(target);
  if (source == target) return;
  std::memcpy(memory_.data() + page_bytes_ * size_t(target), memory_.data() + page_bytes_ * size_t(source),
              page_bytes_);
}

void KvCache::clear_page(int32_t page) {
  check(page);
  std::memset(memory_.data() + page_bytes_ * size_t(page), 0, page_bytes_);
}

}  // namespace redoubt
