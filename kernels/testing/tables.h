// Kernel tables for tests and measurements only: emulated instructions, instructions in another encoding, and
// kernels chosen as on another maker's processors. They are no tiers, so they are neither listed nor chosen.
#pragma once

#include <string>
#include <vector>

#include "contract/kernel_table.h"

namespace redoubt {

// amx_int8's kernels with tile registers in memory. Throws std::invalid_argument without avx512_vnni, which
// it is built on.
const KernelTable& emulated_amx_table();
// avx_vnni's kernels in the encoding of AVX-512, for processors that have only that encoding. Throws as
// emulated_amx_table does.
const KernelTable& evex_avx_vnni_table();
// avx512_vnni's kernels, but int8 activations are multiplied as on processors of another maker. Throws as
// emulated_amx_table does.
const KernelTable& other_avx512_vnni_table();

// The kernels of a tier, or one of the three tables above, by name. Throws std::invalid_argument.
const KernelTable& tested_table(const std::string& name);
// The names that this machine can run.
std::vector<std::string> tested_table_names();

// Fillers, as those of kernel_table.h.
void fill_linear_avx_vnni_evex(KernelTable& table);
void fill_linear_amx_int8_emulated(KernelTable& table);
void fill_linear_amx_bf16_emulated(KernelTable& table);
void fill_attention_amx_bf16_emulated(KernelTable& table);

}  // namespace redoubt
