// What the processor offers and the operating system grants. Knows nothing of kernels or tiers.
#pragma once

#include <string>

namespace redoubt {

// An instruction set counts only if CPUID reports it and the OS saves its registers (XCR0).
struct CpuFeatures {
  bool avx2 = false;         // AVX2, FMA and F16C
  bool avx512_vnni = false;  // all of the above, and AVX-512 F, BW, DQ, VL and VNNI
};

CpuFeatures detect_cpu_features();

// The processor's brand string, trimmed; "unknown" where it gives none.
std::string cpu_model();

}  // namespace redoubt
