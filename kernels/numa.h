// Where the process' memory comes from. Knows nothing of CPUs or threads.
#pragma once

namespace redoubt {

// Sets the calling thread's memory policy to MPOL_BIND on one NUMA node (set_mempolicy(2)); threads it starts
// later inherit it. Throws std::invalid_argument for a negative node and std::system_error where the kernel
// refuses.
void bind_memory_to_node(int node);

}  // namespace redoubt
