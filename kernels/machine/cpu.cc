// CPUID and XGETBV (Intel SDM volume 2A, "CPUID"; volume 1, section 13.3), and Linux's permission for AMX
// (its documentation, "Using XSTATE features in user space applications"). Knows nothing of kernels or tiers.
#include "machine/cpu.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace redoubt {
namespace {

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx,
                    &r.edx);  // leaves zeros for a leaf that is not there
  return r;
}

constexpr bool has_bit(uint64_t word, int position) { return (word >> position) & 1; }

// The register states that the OS saves on a context switch.
uint64_t read_xcr0() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t(high) << 32 | low;
}

}  // namespace

CpuFeatures detect_cpu_features() {
  const Registers basic = cpuid(1, 0);
  const Registers extended = cpuid(7, 0);
  CpuFeatures features;
  if (!has_bit(basic.ecx, 27)) return features;  // OSXSAVE: xgetbv may be executed
  const uint64_t xcr0 = read_xcr0();
  constexpr uint64_t kAvxState = 0x6;      // XMM, YMM
  constexpr uint64_t kAvx512State = 0xe6;  // and opmask, ZMM0-15 upper halves, ZMM16-31

  const bool avx = has_bit(basic.ecx, 28), fma = has_bit(basic.ecx, 12), f16c = has_bit(basic.ecx, 29);
  features.avx2 = (xcr0 & kAvxState) == kAvxState && avx && fma && f16c && has_bit(extended.ebx, 5);

  const Registers more = cpuid(7, 1);
  features.avx_vnni = features.avx2 && has_bit(more.eax, 4);

  const bool f = has_bit(extended.ebx, 16), dq = has_bit(extended.ebx, 17), bw = has_bit(extended.ebx, 30),
             vl = has_bit(extended.ebx, 31), vnni = has_bit(extended.ecx, 11);
  features.avx512 = features.avx2 && (xcr0 & kAvx512State) == kAvx512State && f && dq && bw && vl;
  features.avx512_vnni = features.avx512 && vnni;

  features.avx512_bf16 = features.avx512_vnni && has_bit(more.eax, 5) && has_bit(extended.ecx, 1);

  constexpr uint64_t kTileState = 0x60000;  // tile configuration, tile data
  const bool amx_bf16 = has_bit(extended.edx, 22), amx_tile = has_bit(extended.edx, 24),
             amx_int8 = has_bit(extended.edx, 25), avx512_fp16 = has_bit(extended.edx, 23);
  features.amx = features.avx512_bf16 && avx512_fp16 && (xcr0 & kTileState) == kTileState && amx_tile &&
                 amx_int8 && amx_bf16;
  return features;
}

bool request_amx_permission() {
  constexpr int kArchReqXcompPerm = 0x1023, kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

bool is_intel_cpu() {
  const Registers vendor = cpuid(0, 0);
  return vendor.ebx == 0x756e6547 && vendor.edx == 0x49656e69 && vendor.ecx == 0x6c65746e;  // GenuineIntel
}

std::string cpu_model() {
  if (cpuid(0x80000000u, 0).eax < 0x80000004u) return "unknown";
  char brand[49] = {};
  for (unsigned i = 0; i < 3; ++i) {
    const Registers r = cpuid(0x80000002u + i, 0);
    const unsigned words[4] = {r.eax, r.ebx, r.ecx, r.edx};
    std::memcpy(brand + 16 * i, words, sizeof words);
  }
  const std::string name = brand;
  const size_t first = name.find_first_not_of(' ');
  if (first == std::string::npos) return "unknown";
  return name.substr(first, name.find_last_not_of(' ') - first + 1);
}

}  // namespace redoubt
