// The hidden states of a text so far, and how similar a candidate for its next token is to them, for
// contrastive search (Su et al. 2022, "A Contrastive Framework for Neural Text Generation"). States are those
// after the final norm. Knows no tokens, pages or requests.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sampling/prompt_reader.h"

namespace redoubt {

// One state per token, each scaled to length 1 (one of length 0 stays as it is).
class HiddenHistory {
 public:
  // Throws std::invalid_argument.
  explicit HiddenHistory(int32_t hidden_size);

  int32_t hidden_size() const { return hidden_size_; }
  int32_t tokens() const { return int32_t(states_.size() / size_t(hidden_size_)); }
  void append(const float* state);
  // The largest cosine similarity between `state` and one of the history; -1 if that is empty.
  float most_similar(const float* state) const;

 private:
  std::vector<float> scaled(const float* state) const;

  int32_t hidden_size_;
  std::vector<float> states_;
};

// Appends the rows that the history does not have yet. In a step it is the history's only reader.
class HistoryWriter final : public PromptReader {
 public:
  explicit HistoryWriter(std::shared_ptr<HiddenHistory> history) : history_(std::move(history)) {}

  int32_t rows_wanted(int32_t context, int32_t queries) const override;
  bool reads_logits() const override { return false; }
  int32_t row_size() const override { return history_->hidden_size(); }
  void read(int32_t index, float* row, TokenScorer& scorer) override;
  Shared shared() const override { return {.object = history_.get(), .changes = true}; }

 private:
  std::shared_ptr<HiddenHistory> history_;
};

// Compares the row of the token after the history with it, and keeps it in case it is chosen. Several may
// read one history in the same step.
class CandidateReader final : public PromptReader {
 public:
  explicit CandidateReader(std::shared_ptr<HiddenHistory> history) : history_(std::move(history)) {}

  int32_t rows_wanted(int32_t context, int32_t queries) const override;
  bool reads_logits() const override { return false; }
  int32_t row_size() const override { return history_->hidden_size(); }
  void read(int32_t index, float* row, TokenScorer& scorer) override;
  Shared shared() const override { return {.object = history_.get(), .changes = false}; }

  float similarity() const { return similarity_; }  // of the row that was read last
  // Appends the candidate's row to the history. Throws std::logic_error if none was read.
  void choose();

 private:
  std::shared_ptr<HiddenHistory> history_;
  std::vector<float> row_;
  float similarity_ = -1;
};

}  // namespace redoubt
