// Readers that call Python functions, so that tests can act inside a step. Not for the service: each call
// waits for the interpreter's lock.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "sampling/prompt_reader.h"
#include "testing/bind.h"

namespace nb = nanobind;

namespace redoubt {
namespace {

// A reader whose methods are Python functions. What they raise is thrown as std::runtime_error.
class CallbackReader final : public PromptReader {
 public:
  CallbackReader(bool reads_logits, int32_t row_size, nb::callable rows_wanted, nb::callable read)
      : reads_logits_(reads_logits),
        row_size_(row_size),
        rows_wanted_(std::move(rows_wanted)),
        read_(std::move(read)) {}

  int32_t rows_wanted(int32_t context, int32_t queries) const override {
    const nb::gil_scoped_acquire locked;
    try {
      return nb::cast<int32_t>(rows_wanted_(context, queries));
    } catch (const nb::python_error& error) {
      throw std::runtime_error(error.what());
    }
  }
  bool reads_logits() const override { return reads_logits_; }
  int32_t row_size() const override { return row_size_; }
  void read(int32_t index, float*, TokenScorer&) override {
    const nb::gil_scoped_acquire locked;
    try {
      read_(index);
    } catch (const nb::python_error& error) {
      throw std::runtime_error(error.what());
    }
  }

 private:
  bool reads_logits_;
  int32_t row_size_;
  nb::callable rows_wanted_;
  nb::callable read_;
};

}  // namespace

void bind_step(nb::module_& testing) {
  nb::class_<CallbackReader, PromptReader>(testing, "CallbackReader")
      .def(nb::init<bool, int32_t, nb::callable, nb::callable>(), nb::kw_only(), nb::arg("reads_logits"),
           nb::arg("row_size"), nb::arg("rows_wanted"), nb::arg("read"));
}

}  // namespace redoubt
