// Copies a batch (contract: step/batch.h).
#include "step/batch.h"

namespace redoubt {
namespace {

const int32_t* copied(const int32_t* given, int32_t count, std::vector<int32_t>& own) {
  if (given == nullptr) return nullptr;
  own.assign(given, given + count);
  return own.data();
}

}  // namespace

const Batch& BatchCopy::copy(const Batch& given) {
  batch_ = given;
  batch_.token_ids = copied(given.token_ids, given.tokens, token_ids_);
  batch_.positions = copied(given.positions, given.tokens, positions_);
  batch_.slots = copied(given.slots, given.sequences, slots_);
  batch_.query_lengths = copied(given.query_lengths, given.sequences, query_lengths_);
  batch_.context_lengths = copied(given.context_lengths, given.sequences, context_lengths_);
  batch_.draft_lengths = copied(given.draft_lengths, given.sequences, draft_lengths_);
  return batch_;
}

}  // namespace redoubt
