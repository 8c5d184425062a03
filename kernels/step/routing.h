// Routing: which experts each row takes, and which rows each expert gets. Plain arithmetic; knows no weights
// and no threads.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace redoubt {

// Chooses the experts of one row. scores: [count], the router's outputs; they are changed. correction_bias:
// [count] or null. Writes [per_token] experts in rising order and their factors. Among equal scores the
// lowest expert wins; NaN loses to every number.
void choose_experts(const ExpertsConfig& config, const float* correction_bias, float* scores,
                    int32_t* experts, float* factors);

// One expert and its rows: pairs [first_pair, first_pair + rows) of ExpertRows.
struct ExpertShare {
  int32_t expert = 0;
  int32_t first_pair = 0;
  int32_t rows = 0;
  int32_t answers = 0;  // of these, which come first
};

// The pairs of a row and one of its experts, sorted by expert and then by row.
class ExpertRows {
 public:
  ExpertRows() = default;
  // Reserves room for `pairs` pairs.
  ExpertRows(int64_t pairs, int32_t experts);

  // experts, factors: [rows][per_token]. The first `answers` rows decode.
  void sort(const ExpertsConfig& config, const int32_t* experts, const float* factors, int32_t rows,
            int32_t answers);

  // The experts that have rows, in rising order.
  const std::vector<ExpertShare>& shares() const { return shares_; }
  int32_t row(int32_t pair) const { return rows_[size_t(pair)]; }
  float factor(int32_t pair) const { return factors_[size_t(pair)]; }
  int32_t pairs() const { return pairs_; }
  // Index of a pair's share.
  int32_t share_of(int32_t pair) const { return share_of_[size_t(pair)]; }

 private:
  int32_t pairs_ = 0;
  std::vector<ExpertShare> shares_;
  std::vector<int32_t> rows_;      // [pairs]
  std::vector<float> factors_;     // [pairs]
  std::vector<int32_t> share_of_;  // [pairs]
  std::vector<int32_t> begins_;    // [experts + 1]
};

}  // namespace redoubt
