// The pool of state pages: what layers without keys and values keep of kPageTokens tokens of a sequence. A
// page has all such layers' parts one after another, in fp32. Of Gated DeltaNet:
//
//   end states  [value_heads][key_dim][value_dim]   behind the page's last token
//   changes     [value_heads][kPageTokens][value_dim], u of contract/delta.h
//   decays      [value_heads][kPageTokens], G in base 2
//   keys        [key_heads][key_dim][kPageTokens], normalized
//   inputs      [kPageTokens][channels], of the convolution
//
// Of a gated convolution: its inputs [kPageTokens][hidden_size].
//
// Does not know which sequence has which page. Core dumps leave the pool out: it holds what users wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "machine/aligned_memory.h"
#include "model/config.h"

namespace redoubt {

class StatePages {
 public:
  StatePages() = default;
  // For a model with states. Memory is not touched before it is written.
  StatePages(const ModelConfig& config, int32_t pages);

  // 0 for a model without such layers.
  static size_t page_bytes(const ModelConfig& config);
  int32_t pages() const { return pages_; }
  size_t bytes() const { return memory_.bytes(); }

  // slot: index among the layers that keep states. The caller has checked the page. All functions but inputs
  // are for Gated DeltaNet.
  float* end_state(int32_t page, int32_t slot, int32_t value_head) const {
    return layer(page, slot) + size_t(value_head) * state_floats();
  }
  float* changes(int32_t page, int32_t slot, int32_t value_head) const;
  float* decays(int32_t page, int32_t slot, int32_t value_head) const;
  float* keys(int32_t page, int32_t slot, int32_t key_head) const;
  float* inputs(int32_t page, int32_t slot, int32_t token) const;

  // These throw std::invalid_argument for a page out of range.
  void copy_page(int32_t source, int32_t target);
  void clear_page(int32_t page);
  // Gives the memory of all pages back to the system; what they held is lost.
  void release() const { memory_.release(); }

 private:
  void check(int32_t page) const;
  size_t state_floats() const { return size_t(delta_.key_dim) * size_t(delta_.value_dim); }
  float* layer(int32_t page, int32_t slot) const {
    return memory_.data() + size_t(page) * page_floats_ + layers_[size_t(slot)].begin;
  }

  // Offsets in floats: of a layer in its page, of its inputs, and the inputs per token.
  struct Place {
    size_t begin, inputs, channels;
  };

  DeltaConfig delta_;  // zeros where there is none
  int32_t pages_ = 0;
  size_t page_floats_ = 0;
  std::vector<Place> layers_;
  // Offsets of the parts of a Gated DeltaNet layer, in floats.
  size_t changes_ = 0, decays_ = 0, keys_ = 0;
  AlignedMemory<float> memory_;
};

}  // namespace redoubt
