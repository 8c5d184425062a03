// NUMA policies of the process' memory. Knows nothing of CPUs or threads.
#pragma once

#include <cstddef>
#include <vector>

namespace redoubt {

// Whether the process may use the functions below: the seccomp profiles of containers refuse their system
// calls (EPERM or ENOSYS) without CAP_SYS_NICE. Changes nothing.
bool may_bind_memory();

// Sets the calling thread's memory policy to MPOL_BIND on one NUMA node (set_mempolicy(2)); threads it starts
// later inherit it. Throws std::invalid_argument for a negative node and std::system_error where the kernel
// refuses.
void bind_memory_to_node(int node);

// Sets MPOL_INTERLEAVE likewise: pages alternate between several nodes.
void interleave_memory(const std::vector<int>& nodes);

// The nodes that the calling thread's memory policy binds to; empty if none.
std::vector<int> bound_nodes();

// mbind(2), MPOL_BIND: pages of [begin, begin + bytes), which are not touched yet, will be on the node.
// `begin` is at a page. Throws as above.
void bind_range_to_node(void* begin, size_t bytes, int node);

}  // namespace redoubt
