// The processor's features, as granted by the operating system. Knows nothing of kernels or tiers.
#pragma once

#include <string>

namespace redoubt {

// An instruction set counts only if CPUID reports it and the OS saves its registers (XCR0).
struct CpuFeatures {
  bool avx2 = false;         // AVX2, FMA and F16C
  bool avx_vnni = false;     // avx2, and AVX-VNNI
  bool avx512 = false;       // avx2, and AVX-512 F, BW, DQ and VL
  bool avx512_vnni = false;  // avx512, and AVX-512 VNNI
  bool avx512_bf16 = false;  // avx512_vnni, and AVX-512 BF16 and VBMI
  // avx512_bf16, and AVX512-FP16 and AMX's tiles, int8 and bf16; a process must ask for tiles too
  bool amx = false;
};

CpuFeatures detect_cpu_features();

// Asks Linux for the right to AMX's tile registers, for all threads of this process; false if it refuses. A
// thread that uses a tile without it is killed.
bool request_amx_permission();

// The processor's brand string, trimmed; "unknown" where it gives none.
std::string cpu_model();

// Whether Intel made the processor.
bool is_intel_cpu();

}  // namespace redoubt
