// Cosine similarities with all of a text (contract: sampling/hidden_history.h).
#include "sampling/hidden_history.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

namespace redoubt {
namespace {

// Sums in a fixed number of lanes, so that the result is the same on every processor.
float dot(const float* a, const float* b, size_t size) {
  constexpr size_t kLanes = 16;
  std::array<float, kLanes> sums{};
  size_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  double total = 0;
  for (const float sum : sums) total += sum;
  for (; i < size; ++i) total += double(a[i]) * double(b[i]);
  return float(total);
}

}  // namespace

HiddenHistory::HiddenHistory(int32_t hidden_size) : hidden_size_(hidden_size) {
  if (hidden_size < 1) throw std::invalid_argument("hidden_size: it must be at least 1");
}

std::vector<float> HiddenHistory::scaled(const float* state) const {
  double squares = 0;
  for (int32_t i = 0; i < hidden_size_; ++i) squares += double(state[i]) * double(state[i]);
  const double length = std::sqrt(squares);
  std::vector<float> result(state, state + hidden_size_);
  if (length > 0) {
    for (float& value : result) value = float(value / length);
  }
  return result;
}

void HiddenHistory::append(const float* state) {
  const std::vector<float> unit = scaled(state);
  states_.insert(states_.end(), unit.begin(), unit.end());
}

float HiddenHistory::most_similar(const float* state) const {
  const std::vector<float> unit = scaled(state);
  float most = -1;
  for (size_t begin = 0; begin < states_.size(); begin += size_t(hidden_size_)) {
    most = std::max(most, dot(states_.data() + begin, unit.data(), size_t(hidden_size_)));
  }
  return most;
}

int32_t HistoryWriter::rows_wanted(int32_t context, int32_t queries) const {
  return context + queries > history_->tokens() ? queries : 0;
}

void HistoryWriter::read(int32_t index, float* row, TokenScorer&) {
  if (index == history_->tokens()) history_->append(row);
}

int32_t CandidateReader::rows_wanted(int32_t context, int32_t queries) const {
  return context + queries == history_->tokens() + 1 ? 1 : 0;
}

void CandidateReader::read(int32_t, float* row, TokenScorer&) {
  row_.assign(row, row + history_->hidden_size());
  similarity_ = history_->most_similar(row);
}

void CandidateReader::choose() {
  if (row_.empty()) throw std::logic_error("the candidate was never computed");
  history_->append(row_.data());
}

}  // namespace redoubt
