// Stores one token's key and value in its page, scalar: defines the bytes.
#include <algorithm>

#include "float_formats.h"
#include "ops_scalar.h"

namespace redoubt::scalar {
namespace {

FixedPoint int8_fixed_point_of(const float* x, int n) {
  uint32_t largest = 0;
  for (int i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & kMagnitudeBits);
  return int8_fixed_point(largest);
}

int8_t code_of(float x, float inverse) { return inverse == 0.0f ? 0 : int8_t(std::nearbyint(x * inverse)); }

void write_int8_kv(std::byte* block, int slot, int head_dim, const float* key, const float* value) {
  auto* keys = reinterpret_cast<int8_t*>(block);
  auto* values = keys + values_offset_bytes(KvType::kInt8, head_dim);
  auto* scales = reinterpret_cast<uint16_t*>(block + scales_offset_bytes(head_dim));
  const FixedPoint of_key = int8_fixed_point_of(key, head_dim);
  const FixedPoint of_value = int8_fixed_point_of(value, head_dim);
  scales[slot] = float_to_bf16(of_key.scale);
  scales[kPageTokens + slot] = float_to_bf16(of_value.scale);
  for (int d = 0; d < head_dim; ++d) {
    keys[(d / 2 * kPageTokens + slot) * 2 + d % 2] = code_of(key[d], of_key.inverse);
    values[(slot / 2 * head_dim + d) * 2 + slot % 2] = code_of(value[d], of_value.inverse);
  }
}

}  // namespace

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
  } else if (kv.type == KvType::kInt8) {
    write_int8_kv(block, slot, head_dim, key, value);
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
