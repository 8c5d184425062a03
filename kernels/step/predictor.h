// The layer that drafts: from a hidden state h of a token, and the token t that follows it, it predicts the
// one after t. Of multi-token prediction (DeepSeek-V3, 2024, section 2.2), with h after the final norm:
//
//   x = input_proj([embedding_norm(embedding(t)), hidden_norm(h)]); state = output_norm(layer(x))
//
// The head makes logits of `state`. Of an EAGLE-3 head (Li et al. 2025), with h = input_proj of the residual
// stream after three of the model's layers:
//
//   state = layer(h), whose query, key and value take [embedding_norm(embedding(t)), hidden_norm(h)]
//
// and the head makes logits of output_norm(state); with other norms that PredictorConfig names. Drafts
// further on take the state in h's place, and the draft in t's. Its keys and values stand at t's place in the
// same pages as those of the model's layers, so that a page depends on its own tokens and on earlier ones
// alone. The first token has no h: its place is never read. A step stores the keys of its tokens, and keeps
// the hidden state of each sequence's last one, which the next step and the next draft need. Where it is not
// there (behind pages of the prefix cache), zeros stand in its place: that may cost a draft, and never
// changes a text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "machine/aligned_memory.h"
#include "step/inputs.h"
#include "step/products.h"
#include "step/residual.h"
#include "step/team.h"

namespace redoubt {

// The most drafts behind a sequence's text: they fit one page beside the sequence's own.
inline constexpr int32_t kMostDrafts = 16;

// For each slot, the hidden state that the next token is drafted from: that of the last token, as it enters
// the predictor or the head, or a draft's.
class LastHidden {
 public:
  LastHidden() = default;
  LastHidden(int32_t slots, int32_t hidden_size)
      : hidden_size_(hidden_size), rows_(size_t(slots) * size_t(hidden_size)), of_(size_t(slots)) {}

  float* row(int32_t slot) const { return rows_.data() + size_t(slot) * size_t(hidden_size_); }
  // page: that of the last of `context` tokens.
  // base: how many of `context` tokens are no drafts.
  void keep(int32_t slot, int32_t context, int32_t page, int32_t base) {
    of_[size_t(slot)] = {context, page, base};
  }
  bool is_of(int32_t slot, int32_t context, int32_t page) const {
    return of_[size_t(slot)].context == context && of_[size_t(slot)].page == page;
  }
  int32_t base(int32_t slot) const { return of_[size_t(slot)].base; }
  size_t bytes() const { return rows_.bytes(); }
  void forget() { of_.assign(of_.size(), {}); }
  // Overwrites what the slot has with zeros.
  void forget(int32_t slot) {
    of_[size_t(slot)] = {};
    std::fill_n(row(slot), hidden_size_, 0.0f);
  }

 private:
  struct Token {
    int32_t context = -1;
    int32_t page = -1;
    int32_t base = -1;
  };

  int32_t hidden_size_ = 0;
  AlignedMemory<float> rows_;
  std::vector<Token> of_;
};

class Predictor {
 public:
  Predictor(const StepContext& context, Team& team, Inputs& inputs, Products& products, Residual& residual)
      : context_(context), team_(team), inputs_(inputs), products_(products), residual_(residual) {}

  // Copies the residual stream for an EAGLE-3 head, if it reads what so many layers have left. The caller
  // comes to a barrier before it changes.
  void take_states(int layers);
  // What the layer's keys and values are made of, of all rows, and the last right row of each sequence for
  // later: call it after sampling, when nobody reads the residual stream any more.
  void take_step();
  // The same of a step that drafts: embeddings from the residual stream, hidden states from the workspace.
  void take_drafts();
  // Makes drafts of the residual stream, and keeps the states in the workspace.
  void choose();

 private:
  // Both parts of x, where row r's begin.
  float* parts(int64_t r) const;
  float* state(int64_t r) const;
  const PredictorWeights& weights() const { return *team_.weights().predictor; }
  bool is_eagle() const { return context_.config.is_eagle(); }
  // Replaces the residual stream: by x, or an EAGLE-3 head's h.
  void project();
  // h of a row of the residual stream.
  void copy_hidden(int64_t r, float* out) const;
  void take_rows();
  void take_row(int32_t r);
  void keep_last_rows();
  int32_t page_of(int32_t sequence, int32_t position) const;
  // How many of a sequence's new tokens are right.
  int32_t right_tokens(int32_t sequence) const;

  const StepContext& context_;
  Team& team_;
  Inputs& inputs_;
  Products& products_;
  Residual& residual_;
};

}  // namespace redoubt
