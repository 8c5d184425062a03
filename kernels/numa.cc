// set_mempolicy(2) by its system call: libnuma would be a dependency for one number. Knows nothing of CPUs or
// threads.
#include "numa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace redoubt {

void bind_memory_to_node(int node) {
  constexpr int kMpolBind = 2;     // linux/mempolicy.h
  constexpr int kMaxNodes = 1024;  // the largest CONFIG_NODES_SHIFT in use
  if (node < 0 || node >= kMaxNodes) {
    throw std::invalid_argument("node: " + std::to_string(node) + " is not a NUMA node's number");
  }
  constexpr int kWordBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(kMaxNodes / kWordBits, 0);
  mask[size_t(node) / kWordBits] |= 1ul << (node % kWordBits);
  // The kernel reads maxnode - 1 bits.
  if (syscall(SYS_set_mempolicy, kMpolBind, mask.data(), kMaxNodes + 1ul) != 0) {
    throw std::system_error(errno, std::generic_category(),
                            "can't bind memory to NUMA node " + std::to_string(node));
  }
}

}  // namespace redoubt
