// Fills one table per tier, from scalar upwards, and chooses among them. Knows no kernel itself.
#include "contract/kernel_table.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "machine/cpu.h"

namespace redoubt {
namespace {

constexpr Tier kTiers[] = {Tier::kScalar, Tier::kAvx2,       Tier::kAvxVnni,
                           Tier::kAvx512, Tier::kAvx512Vnni, Tier::kAmxInt8};

bool granted(Tier tier) {
  static const CpuFeatures features = detect_cpu_features();
  switch (tier) {
    case Tier::kScalar:
      return true;
    case Tier::kAvx2:
      return features.avx2;
    case Tier::kAvxVnni:
      return features.avx_vnni;
    case Tier::kAvx512:
      return features.avx512;
    case Tier::kAvx512Vnni:
      return features.avx512_vnni;
    case Tier::kAmxInt8: {
      static const bool permitted = features.amx && request_amx_permission();
      return permitted;
    }
  }
  return false;
}

std::string granted_names() {
  std::string names;
  for (Tier tier : available_tiers()) names += (names.empty() ? "" : ", ") + std::string(tier_name(tier));
  return names;
}

KernelTable make_table(Tier tier) {
  KernelTable table{};
  table.tier = tier;
  fill_linear_scalar(table);
  fill_ops_scalar(table);
  fill_attention_scalar(table);
  fill_rounding_scalar(table);
  fill_delta_scalar(table);
  if (tier >= Tier::kAvx2) {
    fill_linear_avx2(table);
    fill_ops_avx2(table);
    fill_attention_avx2(table);
    fill_rounding_avx2(table);
    fill_delta_avx2(table);
  }
  if (tier >= Tier::kAvxVnni) fill_linear_avx_vnni(table);
  if (tier >= Tier::kAvx512) {
    fill_linear_avx512(table);
    fill_ops_avx512(table);
    fill_attention_avx512(table);
    fill_rounding_avx512(table);
    fill_delta_avx512(table);
  }
  if (tier >= Tier::kAvx512Vnni) {
    fill_linear_avx512_vnni(table);
    fill_attention_avx512_vnni(table);
  }
  if (tier >= Tier::kAmxInt8) {
    fill_linear_amx_int8(table);
    fill_linear_amx_bf16(table);
    fill_attention_amx_bf16(table);
  }
  return table;
}

}  // namespace

const char* tier_name(Tier tier) {
  switch (tier) {
    case Tier::kScalar:
      return "scalar";
    case Tier::kAvx2:
      return "avx2";
    case Tier::kAvxVnni:
      return "avx_vnni";
    case Tier::kAvx512:
      return "avx512";
    case Tier::kAvx512Vnni:
      return "avx512_vnni";
    case Tier::kAmxInt8:
      return "amx_int8";
  }
  return "?";
}

Tier tier_from_name(std::string_view name) {
  for (Tier tier : kTiers) {
    if (name == tier_name(tier)) return tier;
  }
  throw std::invalid_argument("unknown kernel tier '" + std::string(name) +
                              "'; this machine has: " + granted_names());
}

std::vector<Tier> available_tiers() {
  std::vector<Tier> tiers;
  for (Tier tier : kTiers) {
    if (granted(tier)) tiers.push_back(tier);
  }
  return tiers;
}

const KernelTable& kernel_table(Tier tier) {
  if (!granted(tier)) {
    throw std::invalid_argument("kernel tier '" + std::string(tier_name(tier)) +
                                "' is not granted by this CPU and OS; this machine has: " + granted_names());
  }
  static const KernelTable tables[] = {make_table(Tier::kScalar),     make_table(Tier::kAvx2),
                                       make_table(Tier::kAvxVnni),    make_table(Tier::kAvx512),
                                       make_table(Tier::kAvx512Vnni), make_table(Tier::kAmxInt8)};
  return tables[size_t(tier)];
}

Tier default_tier() {
  const char* forced = std::getenv("REDOUBT_ISA");
  if (forced == nullptr || *forced == '\0') return available_tiers().back();
  try {
    const Tier tier = tier_from_name(forced);
    kernel_table(tier);
    return tier;
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("REDOUBT_ISA: ") + error.what());
  }
}

}  // namespace redoubt
