// The parts of the Python module, one function per family. Each is defined beside what it binds.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "contract/kernel_table.h"

namespace redoubt {

// Names of kernels that only tests have: AMX's with emulated tile registers, AVX-VNNI's in AVX-512's
// encoding, and AVX-512's as on processors of another maker.
inline constexpr const char* kEmulatedAmx = "amx_int8_emulated";
inline constexpr const char* kEvexAvxVnni = "avx_vnni_evex";
inline constexpr const char* kOtherAvx512Vnni = "avx512_vnni_other";
// A tier's kernels, or those. Throws std::invalid_argument.
const KernelTable& tested_table(const std::string& name);

void bind_linear(nanobind::module_& module);  // packing and linear kernels
void bind_ops(nanobind::module_& module);     // Sampler, and the other kernels for tests
void bind_model(nanobind::module_& module);   // Model, PackedFileError

}  // namespace redoubt
