// Python's view of the plans for weights in memory. Loads no weights.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "testing/bind.h"
#include "weights/node_slices.h"
#include "weights/weight_memory.h"

namespace nb = nanobind;

namespace redoubt {
namespace {

// Tensors as (bytes, tiles), one after the other in a file; see testing.pyi.
nb::list planned_slices(const std::vector<std::pair<size_t, int>>& tensors, int threads,
                        const std::vector<int>& system_nodes) {
  const ThreadNodes nodes(threads, system_nodes);
  std::vector<SliceSource> sources;
  size_t file_bytes = 0;
  for (const auto& [bytes, tiles] : tensors) {
    sources.push_back({.file_begin = file_bytes, .bytes = bytes, .tiles = tiles});
    file_bytes += bytes;
  }
  const SlicePlan plan = plan_slices(sources, file_bytes, nodes);
  nb::list arenas;
  for (const SlicePlan::Arena& arena : plan.arenas) {
    nb::list pieces, begins;
    for (const SlicePlan::Piece& piece : arena.pieces) {
      pieces.append(nb::make_tuple(piece.file_begin, piece.memory_begin, piece.bytes));
    }
    for (const std::vector<size_t>& begin : plan.begins) begins.append(begin[size_t(arena.node)]);
    arenas.append(nb::make_tuple(nodes.system_node(arena.node), arena.begin, arena.bytes, pieces, begins));
  }
  return arenas;
}

// kChoose: choose_weight_memory, or require_weight_copy.
template <WeightMemory (*kChoose)(WeightMemory, const WeightMemoryFacts&)>
std::string chosen_weight_memory(const std::string& wanted, size_t file_bytes, size_t other_bytes,
                                 size_t mapped_huge_bytes, const std::vector<int>& bound_nodes,
                                 const std::string& root) {
  return weight_memory_name(kChoose(weight_memory_from_name(wanted), {.file_bytes = file_bytes,
                                                                      .other_bytes = other_bytes,
                                                                      .mapped_huge_bytes = mapped_huge_bytes,
                                                                      .bound_nodes = bound_nodes,
                                                                      .root = root}));
}

}  // namespace

void bind_weight_plans(nb::module_& testing) {
  testing.def("plan_slices", &planned_slices, nb::arg("tensors"), nb::arg("threads"), nb::arg("nodes"));
  const auto bind = [&](const char* name, auto* choose) {
    testing.def(name, choose, nb::arg("wanted"), nb::arg("file_bytes"), nb::arg("other_bytes"),
                nb::arg("mapped_huge_bytes"), nb::arg("bound_nodes"), nb::arg("root"));
  };
  bind("choose_weight_memory", &chosen_weight_memory<choose_weight_memory>);
  bind("require_weight_copy", &chosen_weight_memory<require_weight_copy>);
}

}  // namespace redoubt
