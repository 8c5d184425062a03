// One thread among the others of a step: which part of each stage's work it takes, and where it waits. Knows
// nothing of what is computed.
//
// All work goes through share(), take_pieces(), take_ranges() or once(). They are the one place where a
// thread's exceptions are caught: none leaves a thread of the pool, and every thread comes to every barrier.
// After a failure, which StepContext::failure keeps, no work is done any more.
#pragma once

#include <x86intrin.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "contract/packed_matrix.h"
#include "machine/thread_pool.h"
#include "step/context.h"
#include "step/sharing.h"

namespace redoubt {

class Team {
 public:
  Team(const StepContext& context, int thread)
      : context_(context),
        pool_(context.pool),
        nodes_(context.nodes),
        claims_(context.workspace.claims),
        thread_(thread),
        node_(context.nodes.node_of(thread)),
        node_threads_(context.nodes.threads_of(node_)),
        profile_(thread == 0 ? context.profile : nullptr),
        stage_began_(context.began_ticks) {
    claims_.reset(thread);  // used after the first barrier
  }

  int thread() const { return thread_; }
  int threads() const { return nodes_.threads(); }
  ThreadWorkspace& own() const { return context_.workspace.threads[size_t(thread_)]; }
  // The weights as allocated for this thread's node.
  const ModelWeights& weights() const { return context_.weights[size_t(node_)]; }
  // The tiles of a matrix that the threads of this thread's node compute.
  Range node_tiles(const PackedMatrix& matrix) const { return nodes_.tiles_of(node_, matrix.tiles()); }

  // Calls work() on this thread.
  template <typename Work>
  void once(const Work& work) {
    if (context_.failure.has_failed()) return;
    try {
      work();
    } catch (...) {
      context_.failure.keep_current();
    }
  }

  // Calls work(Range) with this thread's share of `count` items.
  template <typename Work>
  void share(int count, const Work& work) {
    once([&] { work(redoubt::share(count, thread_, threads())); });
  }

  // Calls take(owner, n) for pieces n = 0, 1, ... of this thread's share, then of others', until it returns
  // false; the first claimant gets a piece. Owners count from the first of the threads.
  template <typename Take>
  void take_pieces(int claim, const Take& take) {
    take_pieces_of({0, threads()}, claim, take);
  }

  // Calls take(Range, RowPart) until all work of this thread's node is taken, by this or other threads of it.
  template <typename Take>
  void take_ranges(const SharedWork& work, int claim, const Take& take) {
    const int threads = node_threads_.end - node_threads_.begin;
    if (threads == 1) return once([&] { take(Range{0, work.items}, RowPart{}); });
    const bool by_rows = threads == this->threads() && shares_rows(work, threads);
    take_pieces_of(node_threads_, claim, [&](int owner, int index) {
      const Range all = by_rows ? Range{0, work.items} : redoubt::share(work.items, owner, threads);
      const Range piece = piece_of(work, all, index);
      if (piece.begin == piece.end) return false;
      take(piece, by_rows ? RowPart{owner, threads} : RowPart{});
      return true;
    });
  }
  // Frees this thread's pieces of a used claim. Call it between two barriers.
  void renew_claim(int claim) { claims_.of(claim, thread_).store(0, std::memory_order_relaxed); }

  // Where this thread's share of the next stage's matrices begins, if it will be read by shares.
  Upcoming upcoming(int32_t rows, std::initializer_list<const PackedMatrix*> matrices,
                    int unit_tiles = 1) const;

  // Calls work(), which is matrix products.
  template <typename Work>
  void multiply(const Work& work) {
    if (profile_ == nullptr) return work();
    const uint64_t began = __rdtsc();
    work();
    in_stage_.products += __rdtsc() - began;
  }

  // Waits for the other threads, prefetching meanwhile what this one will read next.
  void barrier(Upcoming upcoming = {});
  // The barrier at a stage's end; also records the stage's time.
  void finish_stage(Stage stage, Upcoming upcoming = {});

 private:
  // How many other threads' shares a thread helps with: cores get their bytes from memory at uneven rates.
  static constexpr int kHelpedThreads = 3;

  template <typename Take>
  void take_pieces_of(Range group, int claim, const Take& take) {
    once([&] {
      const int threads = group.end - group.begin;
      for (int i = 0; i <= kHelpedThreads && i < threads; ++i) {
        const int owner = (thread_ - group.begin + i) % threads;
        std::atomic<int>& next = claims_.of(claim, group.begin + owner);
        while (take(owner, next.fetch_add(1, std::memory_order_relaxed))) {
        }
      }
    });
  }

  const StepContext& context_;
  ThreadPool& pool_;
  const ThreadNodes& nodes_;
  ClaimCounters& claims_;
  const int thread_;
  const int node_;
  const Range node_threads_;
  std::array<StageTicks, kStages>* const profile_;  // thread 0's only
  StageTicks in_stage_;                             // since the last stage's end
  uint64_t stage_began_;
};

}  // namespace redoubt
