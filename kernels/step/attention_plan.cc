// Cuts by query tokens first, which costs nothing. If that gives too few pieces for the threads, long
// contexts are cut by partition and short ones by head. As far as shares stay even, a thread gets pieces of
// rows that are in its cache.
#include "step/attention_plan.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

#include "contract/attention.h"
#include "machine/thread_pool.h"

namespace redoubt {
namespace {

// Enough pieces per thread to balance them, in the order of falling cost.
constexpr int kItemsPerThread = 4;
// Query tokens of one piece: enough rows (a token and a head each) to share the work of widening a page of
// keys, and few enough tokens to make many pieces.
constexpr int kEnoughRows = 128;
constexpr int kUsualQueryTokens = 32;
constexpr int kMostQueryTokens = 128;
constexpr int kFewestQueryTokens = 8;
// The cost of reading and widening a key, where multiplying it with one row costs 1. Heads of a group pay it
// once.
constexpr int64_t kKeyCost = 2;
// Of partial states: 64 MiB at most.
constexpr size_t kMaxStatesFloats = 16 << 20;

class Planner {
 public:
  Planner(const Batch& batch, const ModelConfig& config, int32_t layer, int32_t threads)
      : batch_(batch), shape_(config.shape(layer)), threads_(threads) {
    plan_.layer = layer;
    plan_.window = config.layer(layer).attention.window;
    plan_.ahead = config.layer(layer).attention.ahead();
    plan_.shape = shape_;
  }

  AttentionPlan plan() {
    const int64_t wanted = threads_ == 1 ? 1 : int64_t(threads_) * kItemsPerThread;
    int chunk_tokens = kUsualQueryTokens;
    while (chunk_tokens < kMostQueryTokens && chunk_tokens * shape_.group_heads() < kEnoughRows)
      chunk_tokens *= 2;
    while (chunk_tokens > kFewestQueryTokens && count_chunks(chunk_tokens) * shape_.kv_heads < wanted) {
      chunk_tokens /= 2;
    }
    uncut_items_ = count_chunks(chunk_tokens) * shape_.kv_heads;
    for (int32_t sequence = 0; sequence < batch_.sequences; ++sequence)
      add_sequence(sequence, chunk_tokens, uncut_items_ < wanted);
    std::stable_sort(plan_.items.begin(), plan_.items.end(),
                     [](const AttentionItem& a, const AttentionItem& b) { return a.cost > b.cost; });
    assign_items();
    return std::move(plan_);
  }

 private:
  int64_t count_chunks(int chunk_tokens) const {
    int64_t chunks = 0;
    for (int32_t sequence = 0; sequence < batch_.sequences; ++sequence) {
      chunks += (batch_.query_lengths[sequence] + chunk_tokens - 1) / chunk_tokens;
    }
    return chunks;
  }

  void add_sequence(int32_t sequence, int chunk_tokens, bool cut_further) {
    AttentionItem item;
    item.sequence = sequence;
    item.heads = shape_.group_heads();
    for (int32_t begin = 0; begin < batch_.query_lengths[sequence]; begin += chunk_tokens) {
      item.query_begin = begin;
      item.query_tokens = std::min(chunk_tokens, batch_.query_lengths[sequence] - begin);
      for (item.kv_head = 0; item.kv_head < shape_.kv_heads; ++item.kv_head) {
        if (!cut_further || !add_partitions(item)) add_heads(item, cut_further ? head_pieces(item) : 1);
      }
    }
  }

  // That some of the item's query tokens see. They are read once, for all of them.
  KeyRange keys_of(const AttentionItem& item) const {
    const int32_t context = batch_.context_lengths[item.sequence], before = context + item.query_begin;
    return {first_key(before + 1, plan_.window),
            end_key(before + item.query_tokens, plan_.ahead, batch_.keys(item.sequence))};
  }

  void add(AttentionItem item, int64_t keys, int64_t keys_of_row) {
    item.cost = keys * kKeyCost + keys_of_row * (item.query_tokens * item.heads);
    plan_.items.push_back(item);
  }

  bool add_partitions(AttentionItem item) {
    const KeyRange keys = keys_of(item);
    const int32_t first = keys.begin / kPartitionTokens, count = partitions_of(keys.end) - first;
    const size_t floats =
        size_t(count) * size_t(item.query_tokens * item.heads) * size_t(shape_.head_dim + 2);
    if (count < 2 || plan_.states_floats + floats > kMaxStatesFloats) return false;
    item.states_begin = plan_.states_floats;
    plan_.states_floats += floats;
    plan_.merges.push_back(item);
    for (int32_t p = first; p < first + count; ++p) {
      item.partition = p;
      const int32_t read = keys_in_partition(keys.end, p) - keys_in_partition(keys.begin, p);
      add(item, read, read);
    }
    return true;
  }

  void add_heads(AttentionItem item, int pieces) {
    const KeyRange keys = keys_of(item);
    const int32_t last = batch_.context_lengths[item.sequence] + item.query_begin + item.query_tokens;
    const int32_t of_last = keys.end - first_key(last, plan_.window);
    for (int piece = 0; piece < pieces; ++piece) {
      const Range heads = share(shape_.group_heads(), piece, pieces);
      item.head_begin = heads.begin;
      item.heads = heads.end - heads.begin;
      add(item, keys.end - keys.begin, of_last);
    }
  }

  // Which thread has an item's rows in the stages before and after attention (machine/shares.h, share).
  std::vector<size_t> owners_of_rows() const {
    std::vector<int64_t> first_row;
    int64_t rows = 0;
    for (int32_t sequence = 0; sequence < batch_.sequences; ++sequence) {
      first_row.push_back(rows);
      rows += batch_.query_lengths[sequence];
    }
    std::vector<size_t> owners;
    for (const AttentionItem& item : plan_.items) {
      const int64_t row = first_row[size_t(item.sequence)] + item.query_begin;
      owners.push_back(size_t(row * threads_ / rows));
    }
    return owners;
  }

  // Gives each item to the owner of its rows, unless that makes more than an even share; then to the thread
  // with the least work.
  void assign_items() {
    const size_t threads = size_t(threads_), count = plan_.items.size();
    int64_t total = 0;
    for (const AttentionItem& item : plan_.items) total += item.cost;
    std::vector<size_t> owners = owners_of_rows();
    std::vector<int64_t> loads(threads, 0);
    std::vector<size_t> others;
    for (size_t i = 0; i < count; ++i) {
      int64_t& load = loads[owners[i]];
      if ((load + plan_.items[i].cost) * threads_ <= total) {
        load += plan_.items[i].cost;
      } else {
        others.push_back(i);
      }
    }
    using Load = std::pair<int64_t, size_t>;
    std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
    for (size_t thread = 0; thread < threads; ++thread) least.emplace(loads[thread], thread);
    for (size_t i : others) {
      const auto [load, thread] = least.top();
      least.pop();
      least.emplace(load + plan_.items[i].cost, thread);
      owners[i] = thread;
    }
    std::vector<size_t>& next = plan_.first_item;
    next.assign(threads + 1, 0);
    for (size_t owner : owners) ++next[owner + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    std::vector<AttentionItem> items(count);
    for (size_t i = 0; i < count; ++i) items[next[owners[i]]++] = plan_.items[i];
    std::copy_backward(next.begin(), next.end() - 1, next.end());
    next[0] = 0;
    plan_.items = std::move(items);
  }

  // Into how many pieces to cut a group's heads so that the thread with the most of them ends soonest, if all
  // items are like this one.
  int head_pieces(const AttentionItem& item) const {
    int best = 1;
    int64_t least = std::numeric_limits<int64_t>::max();
    for (int pieces = 1; pieces <= shape_.group_heads(); ++pieces) {
      const int64_t heads = (shape_.group_heads() + pieces - 1) / pieces;
      const int64_t turns = (uncut_items_ * pieces + threads_ - 1) / threads_;
      const int64_t cost = turns * (kKeyCost + item.query_tokens * heads);
      if (cost < least) best = pieces, least = cost;
    }
    return best;
  }

  const Batch& batch_;
  const HeadShape shape_;
  const int32_t threads_;
  int64_t uncut_items_ = 0;
  AttentionPlan plan_;
};

}  // namespace

AttentionPlan plan_attention(const Batch& batch, const ModelConfig& config, int32_t layer, int32_t threads) {
  return Planner(batch, config, layer, threads).plan();
}

}  // namespace redoubt
