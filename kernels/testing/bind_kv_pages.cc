// A pool of KV pages without a model, whose memory the caller sees: for tests of gathering and scattering.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <string>
#include <vector>

#include "model/kv_cache.h"
#include "model/kv_page.h"
#include "testing/bind.h"

namespace nb = nanobind;

namespace redoubt {
namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

class Pool {
 public:
  Pool(const std::string& type, int32_t layers, int32_t kv_heads, int32_t head_dim, int32_t pages)
      : cache_(kv_type_from_name(type),
               one_page_group(std::vector(size_t(layers), KvShape{kv_heads, head_dim})), pages) {}

  nb::ndarray<nb::numpy, uint8_t> memory() {
    const int32_t first = 0;
    auto* data = reinterpret_cast<uint8_t*>(page_block(cache_.view(0, 0, &first), 0));
    const size_t page_bytes = KvCache::page_bytes(cache_.type(), cache_.groups());
    return nb::ndarray<nb::numpy, uint8_t>(data, {size_t(cache_.pages()), page_bytes}, nb::find(*this));
  }
  size_t gathered_page_bytes() const { return redoubt::gathered_page_bytes(cache_); }
  void gather(int32_t page, const Bytes& out) const {
    gather_page(cache_, page, reinterpret_cast<std::byte*>(out.data()), out.size());
  }
  void scatter(int32_t page, const ConstBytes& gathered) {
    scatter_page(cache_, page, reinterpret_cast<const std::byte*>(gathered.data()), gathered.size());
  }

 private:
  KvCache cache_;
};

}  // namespace

void bind_kv_pages(nb::module_& testing) {
  nb::class_<Pool>(testing, "KvPool")
      .def(nb::init<const std::string&, int32_t, int32_t, int32_t, int32_t>(), nb::arg("kv_type"),
           nb::arg("layers"), nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("pages"))
      .def_prop_ro("memory", &Pool::memory)
      .def_prop_ro("gathered_page_bytes", &Pool::gathered_page_bytes)
      .def("gather", &Pool::gather, nb::arg("page"), nb::arg("out").noconvert())
      .def("scatter", &Pool::scatter, nb::arg("page"), nb::arg("gathered").noconvert());
}

}  // namespace redoubt
