// A page of keys and values as one run of bytes, to be kept outside of the pool, and back again.
// Little-endian:
//
//   u32 tokens (kPageTokens), u32 layers, and then for each
//     u32 type, u32 size in bytes, the keys of all heads,
//     u32 type, u32 size in bytes, the values of all heads
//
// A head's keys (or values) are as in its block (contract/attention.h), followed by their scales where the
// type has some. So what comes back has the same bits. In a model of several page groups whose
// heads differ a page does not say what lies where, and is refused. Does not know where the bytes are kept,
// nor whether they are secret.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/kv_cache.h"

namespace redoubt {

// A type's code in files, which never changes, whatever becomes of KvType.
inline constexpr uint32_t kv_type_code(KvType type) {
  switch (type) {
    case KvType::kFp32:
      return 0;
    case KvType::kBf16:
      return 1;
    case KvType::kInt16:
      return 2;
    case KvType::kInt8:
      return 3;
  }
  return UINT32_MAX;
}

// Bytes of a gathered page of such a cache.
size_t gathered_page_bytes(const KvCache& cache);

// Writes page `page` to `out`, gathered_page_bytes() long. Other threads may read the page meanwhile. Throws
// std::invalid_argument for a page that is not there, another size, and where groups' heads differ.
void gather_page(const KvCache& cache, int32_t page, std::byte* out, size_t bytes);

// Replaces page `page` by what gather_page() wrote. Nobody may use the page meanwhile. Throws
// std::invalid_argument for a page that is not there, for bytes of another shape or type, and where
// groups' heads differ, and then has written nothing.
void scatter_page(KvCache& cache, int32_t page, const std::byte* in, size_t bytes);

}  // namespace redoubt
