// Stores one token's key and value in its page, scalar: defines the bytes.
#include "float_formats.h"
#include "ops_scalar.h"

namespace redoubt::scalar {

void write_kv(const KvView& kv, int32_t token, const float* key, const float* value) {
  std::byte* block = page_block(kv, token / kPageTokens);
  const int slot = token % kPageTokens;
  const int head_dim = kv.head_dim;
  std::byte* values = block + values_offset_bytes(kv.type, head_dim);
  if (kv.type == KvType::kFp32) {
    auto* k = reinterpret_cast<float*>(block) + slot;
    auto* v = reinterpret_cast<float*>(values) + slot * head_dim;
    for (int d = 0; d < head_dim; ++d) {
      k[d * kPageTokens] = key[d];
      v[d] = value[d];
    }
  } else {
    auto* k = reinterpret_cast<uint16_t*>(block) + slot * 2;
    auto* v = reinterpret_cast<uint16_t*>(values) + slot * head_dim;
    for (int d = 0; d < head_dim; ++d) {
      k[d / 2 * (kPageTokens * 2) + d % 2] = float_to_bf16(key[d]);
      v[d] = float_to_bf16(value[d]);
    }
  }
}

}  // namespace redoubt::scalar
