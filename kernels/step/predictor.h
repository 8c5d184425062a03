// The layer of multi-token prediction, which drafts: from the hidden state h of a token after the final norm,
// and the token t that follows it, it predicts the one after t (DeepSeek-V3, 2024, section 2.2):
//
//   x = input_proj([embedding_norm(embedding(t)), hidden_norm(h)]); state = output_norm(layer(x))
//
// The head makes logits of `state`. Drafts further on take the state in h's place, and the draft in t's. Its
// keys and values stand at t's place in the same pages as those of the model's layers, so that a page depends
// on its own tokens and on earlier ones alone. The first token has no h: its place is never read. A step
// stores the keys of its tokens, and keeps the hidden state of each sequence's last one, which the next step
// and the next draft need. Where it is not there (behind pages of the prefix cache), zeros stand in its
// place: that may cost a draft, and never changes a text.
#pragma once

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

// For each slot, the hidden state that the next token is drafted from: that of the last token after the final
// norm, or a draft's.
class LastHidden {
 public:
  LastHidden() = default;
  LastHidden(int32_t slots, int32_t hidden_size)
      : hidden_size_(hidden_size), rows_(size_t(slots) * size_t(hidden_size)), of_(size_t(slots)) {}

  float* row(int32_t slot) const { return rows_.data() + size_t(slot) * size_t(hidden_size_); }
  // page: that of the last of `context` tokens. A slot's next sequence has another one.
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

  // Takes the parts of x of all rows: call it after the last layer.
  void take_rows();
  // Keeps the last row of each sequence that is right: call it after sampling.
  void keep_last_rows();
  // The same parts of a step that drafts: embeddings from the residual stream, hidden states from the
  // workspace.
  void take_drafts();
  // Replaces the residual stream by x.
  void project();
  // Makes drafts of the residual stream, and keeps the states in the workspace.
  void choose();

 private:
  // Both parts of x, where row r's begin.
  float* parts(int64_t r) const;
  float* state(int64_t r) const;
  const PredictorWeights& weights() const { return *team_.weights().predictor; }
  void take_row(int32_t r);
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
