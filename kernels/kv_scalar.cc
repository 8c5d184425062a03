// Stores one token's key and value in its page, scalar: defines the bytes. Reads keys back and replaces them.
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

void write_int8_value(std::byte* block, int slot, int head_dim, const float* value) {
  auto* values = reinterpret_cast<int8_t*>(block) + values_offset_bytes(KvType::kInt8, head_dim);
  auto* scales = reinterpret_cast<uint16_t*>(block + scales_offset_bytes(head_dim));
  const FixedPoint fixed = int8_fixed_point_of(value, head_dim);
  scales[kPageTokens + slot] = float_to_bf16(fixed.scale);
  for (int d = 0; d < head_dim; ++d) {
    values[(slot / 2 * head_dim + d) * 2 + slot % 2] = code_of(value[d], fixed.inverse);
  }
}

// Where dimension d of a token's key is, in elements.
size_t pair_place(int slot, int d) {
  return (size_t(d) / 2 * kPageTokens + size_t(slot)) * 2 + size_t(d) % 2;
}

}  // namespace

void write_key(const KvView& kv, int32_t token, const float* key) {
  std::byte* block = page_block(kv, token / kPageTokens);
  const int slot = token % kPageTokens;
  const int head_dim = kv.head_dim;
  if (kv.type == KvType::kFp32) {
    auto* k = reinterpret_cast<float*>(block) + slot;
    for (int d = 0; d < head_dim; ++d) k[d * kPageTokens] = key[d];
  } else if (kv.type == KvType::kInt8) {
    const FixedPoint fixed = int8_fixed_point_of(key, head_dim);
    reinterpret_cast<uint16_t*>(block + scales_offset_bytes(head_dim))[slot] = float_to_bf16(fixed.scale);
    auto* k = reinterpret_cast<int8_t*>(block);
    for (int d = 0; d < head_dim; ++d) k[pair_place(slot, d)] = code_of(key[d], fixed.inverse);
  } else {
    auto* k = reinterpret_cast<uint16_t*>(block);
    for (int d = 0; d < head_dim; ++d) k[pair_place(slot, d)] = float_to_bf16(key[d]);
  }
}

void read_key(const KvView& kv, int32_t token, float* key) {
  const std::byte* block = page_block(kv, token / kPageTokens);
  const int slot = token % kPageTokens;
  const int head_dim = kv.head_dim;
  if (kv.type == KvType::kFp32) {
    const auto* k = reinterpret_cast<const float*>(block) + slot;
    for (int d = 0; d < head_dim; ++d) key[d] = k[d * kPageTokens];
  } else if (kv.type == KvType::kInt8) {
    const auto* scales = reinterpret_cast<const uint16_t*>(block + scales_offset_bytes(head_dim));
    const auto* k = reinterpret_cast<const int8_t*>(block);
    for (int d = 0; d < head_dim; ++d) key[d] = float(k[pair_place(slot, d)]) * bf16_to_float(scales[slot]);
  } else {
    const auto* k = reinterpret_cast<const uint16_t*>(block);
    for (int d = 0; d < head_dim; ++d) key[d] = bf16_to_float(k[pair_place(slot, d)]);
  }
}

void write_kv(const KvView& kv, int32_t token, const float* key, const float* value) {
  write_key(kv, token, key);
  std::byte* block = page_block(kv, token / kPageTokens);
  const int slot = token % kPageTokens;
  const int head_dim = kv.head_dim;
  std::byte* values = block + values_offset_bytes(kv.type, head_dim);
  if (kv.type == KvType::kFp32) {
    auto* v = reinterpret_cast<float*>(values) + slot * head_dim;
    for (int d = 0; d < head_dim; ++d) v[d] = value[d];
  } else if (kv.type == KvType::kInt8) {
    write_int8_value(block, slot, head_dim, value);
  } else {
    auto* v = reinterpret_cast<uint16_t*>(values) + slot * head_dim;
    for (int d = 0; d < head_dim; ++d) v[d] = float_to_bf16(value[d]);
  }
}

}  // namespace redoubt::scalar
