// The tables of tests (contract: testing/tables.h). Knows no kernel itself.
#include "testing/tables.h"

#include "linear/avx512_vnni.h"
#include "machine/cpu.h"

namespace redoubt {
namespace {

constexpr const char* kEmulatedAmx = "amx_int8_emulated";
constexpr const char* kEvexAvxVnni = "avx_vnni_evex";
constexpr const char* kOtherAvx512Vnni = "avx512_vnni_other";

}  // namespace

const KernelTable& emulated_amx_table() {
  static const KernelTable emulated = [] {
    KernelTable table = kernel_table(Tier::kAvx512Vnni);
    fill_linear_amx_int8_emulated(table);
    if (detect_cpu_features().avx512_bf16) {
      fill_linear_amx_bf16_emulated(table);
      fill_attention_amx_bf16_emulated(table);
    }
    return table;
  }();
  return emulated;
}

const KernelTable& evex_avx_vnni_table() {
  static const KernelTable evex = [] {
    kernel_table(Tier::kAvx512Vnni);  // granted?
    KernelTable table = kernel_table(Tier::kAvx2);
    fill_linear_avx_vnni_evex(table);
    return table;
  }();
  return evex;
}

const KernelTable& other_avx512_vnni_table() {
  static const KernelTable other = [] {
    KernelTable table = kernel_table(Tier::kAvx512Vnni);
    table.linear_int8 = [](const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y,
                           int tile_begin, int tile_end) {
      avx512_vnni::linear_int8(w, x, y, tile_begin, tile_end, !avx512_vnni::unpacks_in_multipliers());
    };
    return table;
  }();
  return other;
}

const KernelTable& tested_table(const std::string& name) {
  if (name == kEvexAvxVnni) return evex_avx_vnni_table();
  if (name == kOtherAvx512Vnni) return other_avx512_vnni_table();
  return name == kEmulatedAmx ? emulated_amx_table() : kernel_table(tier_from_name(name));
}

std::vector<std::string> tested_table_names() {
  std::vector<std::string> names;
  bool avx512_vnni = false;
  for (Tier tier : available_tiers()) {
    names.emplace_back(tier_name(tier));
    avx512_vnni = avx512_vnni || tier == Tier::kAvx512Vnni;
  }
  if (avx512_vnni) names.insert(names.end(), {kEvexAvxVnni, kOtherAvx512Vnni, kEmulatedAmx});
  return names;
}

}  // namespace redoubt
