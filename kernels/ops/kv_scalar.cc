// Stores one token's key and value in its page, scalar: defines the bytes. Reads keys back and replaces them.
#include <algorithm>

#include "ops/scalar.h"

namespace redoubt::scalar {
namespace {

// Where dimension d of a token's key is, and of its value where tokens come in pairs; in elements.
size_t key_place(int slot, int d) { return (size_t(d) / 2 * kPageTokens + size_t(slot)) * 2 + size_t(d) % 2; }
size_t value_place(int slot, int d, int head_dim) {
  return (size_t(slot) / 2 * size_t(head_dim) + size_t(d)) * 2 + size_t(slot) % 2;
}

FixedPoint fixed_point_of(KvType type, const float* x, int n) {
  uint32_t largest = 0;
  for (int i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & kMagnitudeBits);
  return kv_fixed_point(type, largest);
}

void store_code(KvType type, std::byte* codes, size_t at, float x, float inverse) {
  const int code = inverse == 0.0f ? 0 : int(std::nearbyint(x * inverse));
  if (type == KvType::kInt8) {
    reinterpret_cast<int8_t*>(codes)[at] = int8_t(code);
  } else {
    reinterpret_cast<int16_t*>(codes)[at] = int16_t(code);
  }
}
float load_code(KvType type, const std::byte* codes, size_t at) {
  if (type == KvType::kInt8) return reinterpret_cast<const int8_t*>(codes)[at];
  return reinterpret_cast<const int16_t*>(codes)[at];
}

uint16_t* scales_of(const KvView& kv, std::byte* block) {
  return reinterpret_cast<uint16_t*>(block + scales_offset_bytes(kv.type, kv.head_dim));
}

}  // namespace

void write_key(const KvView& kv, int32_t token, const float* key) {
  std::byte* block = page_block(kv, token / kPageTokens);
  const int slot = token % kPageTokens;
  const int head_dim = kv.head_dim;
  if (kv.type == KvType::kFp32) {
    auto* k = reinterpret_cast<float*>(block) + slot;
    for (int d = 0; d < head_dim; ++d) k[d * kPageTokens] = key[d];
  } else if (is_fixed_point(kv.type)) {
    const FixedPoint fixed = fixed_point_of(kv.type, key, head_dim);
    scales_of(kv, block)[slot] = float_to_bf16(fixed.scale);
    for (int d = 0; d < head_dim; ++d) store_code(kv.type, block, key_place(slot, d), key[d], fixed.inverse);
  } else {
    auto* k = reinterpret_cast<uint16_t*>(block);
    for (int d = 0; d < head_dim; ++d) k[key_place(slot, d)] = float_to_bf16(key[d]);
  }
}

void read_key(const KvView& kv, int32_t token, float* key) {
  std::byte* block = page_block(kv, token / kPageTokens);
  const int slot = token % kPageTokens;
  const int head_dim = kv.head_dim;
  if (kv.type == KvType::kFp32) {
    const auto* k = reinterpret_cast<const float*>(block) + slot;
    for (int d = 0; d < head_dim; ++d) key[d] = k[d * kPageTokens];
  } else if (is_fixed_point(kv.type)) {
    const float scale = bf16_to_float(scales_of(kv, block)[slot]);
    for (int d = 0; d < head_dim; ++d) key[d] = load_code(kv.type, block, key_place(slot, d)) * scale;
  } else {
    const auto* k = reinterpret_cast<const uint16_t*>(block);
    for (int d = 0; d < head_dim; ++d) key[d] = bf16_to_float(k[key_place(slot, d)]);
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
  } else if (is_fixed_point(kv.type)) {
    const FixedPoint fixed = fixed_point_of(kv.type, value, head_dim);
    scales_of(kv, block)[kPageTokens + slot] = float_to_bf16(fixed.scale);
    for (int d = 0; d < head_dim; ++d) {
      store_code(kv.type, values, value_place(slot, d, head_dim), value[d], fixed.inverse);
    }
  } else {
    auto* v = reinterpret_cast<uint16_t*>(values) + slot * head_dim;
    for (int d = 0; d < head_dim; ++d) v[d] = float_to_bf16(value[d]);
  }
}

}  // namespace redoubt::scalar
