// The pool of KV pages: addresses only. Does not know which sequence has which page.
#include "model/kv_cache.h"

#include <sys/mman.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace redoubt {

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

KvCache::KvCache(KvType type, PageGroups groups, int32_t kv_heads, int32_t head_dim, int32_t pages)
    : type_(type),
      groups_(std::move(groups)),
      kv_heads_(kv_heads),
      head_dim_(head_dim),
      pages_(pages),
      page_bytes_(page_bytes(type, groups_, kv_heads, head_dim)),
      memory_(page_bytes_ * size_t(pages)) {
  madvise(memory_.data(), memory_.bytes(), MADV_DONTDUMP);
}

KvView KvCache::slot_view(int32_t slot, int32_t kv_head, const int32_t* page_table) const {
  const size_t block = size_t(slot) * size_t(kv_heads_) + size_t(kv_head);
  KvView view;
  view.base = memory_.data() + block * kv_block_bytes(type_, head_dim_);
  view.page_stride = int64_t(page_bytes_);
  view.page_table = page_table;
  view.type = type_;
  view.head_dim = head_dim_;
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
