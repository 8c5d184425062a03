// Copies between a page's blocks and a run of bytes.
#include "model/kv_page.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace redoubt {
namespace {

static_assert(std::endian::native == std::endian::little, "pages are written as they are in memory");

constexpr size_t kWordBytes = sizeof(uint32_t);
constexpr size_t kPageHeaderBytes = 2 * kWordBytes;
constexpr size_t kRunHeaderBytes = 2 * kWordBytes;

// One head's keys, or its values: codes, and scales that lie elsewhere in the block.
struct Half {
  size_t codes_offset;
  size_t codes_bytes;
  size_t scales_offset;
  size_t scales_bytes;

  size_t bytes() const { return codes_bytes + scales_bytes; }
};

Half half_of(KvType type, int32_t head_dim, bool values) {
  const size_t codes = values_offset_bytes(type, head_dim);
  const size_t scales = is_fixed_point(type) ? kPageTokens * sizeof(uint16_t) : 0;
  return {.codes_offset = values ? codes : 0,
          .codes_bytes = codes,
          .scales_offset = scales_offset_bytes(type, head_dim) + (values ? scales : 0),
          .scales_bytes = scales};
}

// The layers of a page; where there are several groups, of the fullest one's.
std::vector<int32_t> layers_of(const KvCache& cache) {
  const PageGroups& groups = cache.groups();
  std::vector<std::vector<int32_t>> of_group(groups.windows.size());
  for (size_t layer = 0; layer < groups.of_layer.size(); ++layer) {
    const PageSlot& slot = groups.of_layer[layer];
    if (slot.stores) of_group[size_t(slot.group)].push_back(int32_t(layer));
  }
  return *std::max_element(of_group.begin(), of_group.end(),
                           [](const auto& a, const auto& b) { return a.size() < b.size(); });
}

// Whether a page says by itself what lies where in it.
bool is_known(const KvCache& cache) {
  const std::vector<PageSlot>& layers = cache.groups().of_layer;
  return cache.groups().count() == 1 || std::all_of(layers.begin(), layers.end(), [&](const PageSlot& each) {
           return each.shape == layers.front().shape;
         });
}

// All heads' keys, or values, of a layer.
size_t run_bytes(const KvCache& cache, int32_t layer) {
  const KvShape& shape = cache.shape(layer);
  return size_t(shape.kv_heads) * half_of(cache.type(), shape.head_dim, false).bytes();
}

void check(const KvCache& cache, int32_t page, size_t bytes) {
  cache.check(page);
  if (!is_known(cache)) {
    throw std::invalid_argument(
        "page groups: where their heads differ, a page can't be taken out or put back");
  }
  if (bytes != gathered_page_bytes(cache)) {
    throw std::invalid_argument("a page of this cache has " + std::to_string(gathered_page_bytes(cache)) +
                                " bytes, not " + std::to_string(bytes));
  }
}

// Calls word(offset, value, name) for each word of the format, in order.
template <typename Visit>
void each_word(const KvCache& cache, Visit word) {
  word(size_t(0), uint32_t(kPageTokens), "tokens");
  const std::vector<int32_t> layers = layers_of(cache);
  word(kWordBytes, uint32_t(layers.size()), "layers");
  size_t at = kPageHeaderBytes;
  for (const int32_t layer : layers) {
    const size_t bytes = run_bytes(cache, layer);
    for (int half = 0; half < 2; ++half) {
      word(at, kv_type_code(cache.type()), "type");
      word(at + kWordBytes, uint32_t(bytes), "size");
      at += kRunHeaderBytes + bytes;
    }
  }
}

// Calls copy(offset in the bytes, address in the page, bytes) for each piece.
template <typename Visit>
void each_piece(const KvCache& cache, int32_t page, Visit copy) {
  size_t at = kPageHeaderBytes;
  for (const int32_t layer : layers_of(cache)) {
    const KvShape& shape = cache.shape(layer);
    for (const bool values : {false, true}) {
      const Half half = half_of(cache.type(), shape.head_dim, values);
      at += kRunHeaderBytes;
      for (int32_t head = 0; head < shape.kv_heads; ++head) {
        std::byte* block = page_block(cache.view(layer, head, &page), 0);
        copy(at, block + half.codes_offset, half.codes_bytes);
        copy(at + half.codes_bytes, block + half.scales_offset, half.scales_bytes);
        at += half.bytes();
      }
    }
  }
}

}  // namespace

size_t gathered_page_bytes(const KvCache& cache) {
  size_t bytes = kPageHeaderBytes;
  for (const int32_t layer : layers_of(cache)) {
    bytes += 2 * (kRunHeaderBytes + run_bytes(cache, layer));
  }
  return bytes;
}

void gather_page(const KvCache& cache, int32_t page, std::byte* out, size_t bytes) {
  check(cache, page, bytes);
  each_word(cache,
            [&](size_t at, uint32_t value, const char*) { std::memcpy(out + at, &value, kWordBytes); });
  each_piece(cache, page, [&](size_t at, const std::byte* piece, size_t size) {
    if (size != 0) std::memcpy(out + at, piece, size);
  });
}

void scatter_page(KvCache& cache, int32_t page, const std::byte* in, size_t bytes) {
  check(cache, page, bytes);
  each_word(cache, [&](size_t at, uint32_t value, const char* name) {
    uint32_t found;
    std::memcpy(&found, in + at, kWordBytes);
    if (found != value) {
      throw std::invalid_argument(std::string("a saved page's ") + name + " at byte " + std::to_string(at) +
                                  " is " + std::to_string(found) + ", not " + std::to_string(value));
    }
  });
  each_piece(cache, page, [&](size_t at, std::byte* piece, size_t size) {
    if (size != 0) std::memcpy(piece, in + at, size);
  });
}

}  // namespace redoubt
