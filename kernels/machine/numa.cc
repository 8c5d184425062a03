// set_mempolicy(2) and mbind(2) by their system calls, without a dependency on libnuma. Knows nothing of CPUs
// or threads.
#include "machine/numa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace redoubt {

namespace {

constexpr int kMpolBind = 2, kMpolInterleave = 3;   // linux/mempolicy.h
constexpr int kMaxNodes = 1024;                     // the largest CONFIG_NODES_SHIFT in use
constexpr unsigned long kMaskBits = kMaxNodes + 1;  // the kernel reads one less

constexpr int kWordBits = 8 * sizeof(unsigned long);

std::vector<unsigned long> node_mask(const std::vector<int>& nodes) {
  std::vector<unsigned long> mask(kMaxNodes / kWordBits, 0);
  for (const int node : nodes) {
    if (node < 0 || node >= kMaxNodes) {
      throw std::invalid_argument("node: " + std::to_string(node) + " is not a NUMA node's number");
    }
    mask[size_t(node) / kWordBits] |= 1ul << (node % kWordBits);
  }
  return mask;
}

[[noreturn]] void throw_cannot_bind(const std::vector<int>& nodes) {
  const int error = errno;
  std::string names;
  for (const int node : nodes) names.append(" ").append(std::to_string(node));
  throw std::system_error(error, std::generic_category(), "can't bind memory to NUMA node" + names);
}

bool refused(long result) { return result != 0 && (errno == EPERM || errno == ENOSYS); }

}  // namespace

bool may_bind_memory() {
  constexpr int kNoMode = -1;  // for the kernel a wrong argument (EINVAL); a filter answers before it
  return !refused(syscall(SYS_set_mempolicy, kNoMode, nullptr, 0)) &&
         !refused(syscall(SYS_mbind, nullptr, 0, kNoMode, nullptr, 0, 0));
}

void bind_memory_to_node(int node) {
  if (syscall(SYS_set_mempolicy, kMpolBind, node_mask({node}).data(), kMaskBits) != 0) {
    throw_cannot_bind({node});
  }
}

void interleave_memory(const std::vector<int>& nodes) {
  if (syscall(SYS_set_mempolicy, kMpolInterleave, node_mask(nodes).data(), kMaskBits) != 0) {
    throw_cannot_bind(nodes);
  }
}

std::vector<int> bound_nodes() {
  int mode = 0;
  std::vector<unsigned long> mask = node_mask({});
  std::vector<int> nodes;
  constexpr unsigned long kGivenBits = kMaxNodes;
  if (syscall(SYS_get_mempolicy, &mode, mask.data(), kGivenBits, nullptr, 0) != 0) return nodes;
  for (int node = 0; mode == kMpolBind && node < kMaxNodes; ++node) {
    if ((mask[size_t(node) / kWordBits] >> (node % kWordBits) & 1) != 0) nodes.push_back(node);
  }
  return nodes;
}

void bind_range_to_node(void* begin, size_t bytes, int node) {
  if (syscall(SYS_mbind, begin, bytes, kMpolBind, node_mask({node}).data(), kMaskBits, 0) != 0) {
    throw_cannot_bind({node});
  }
}

}  // namespace redoubt
