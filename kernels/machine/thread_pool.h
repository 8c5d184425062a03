// A persistent pool of pinned threads that run one function together, with a barrier that takes well under a
// microsecond while they are awake. Between runs the threads spin for a short time and then sleep on a futex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "machine/shares.h"

namespace redoubt {

// Memory that a thread will read soon, from the front.
struct Upcoming {
  const uint8_t* begin = nullptr;
  size_t bytes = 0;

  // Prefetches at most `most_bytes` of its first bytes into the second-level cache, and moves past them.
  void request(size_t most_bytes) {
    constexpr int kSecondLevelCache = 2;
    const size_t now = most_bytes < bytes ? most_bytes : bytes;
    for (size_t i = 0; i < now; i += 64) __builtin_prefetch(begin + i, 0, kSecondLevelCache);
    begin += now;
    bytes -= now;
  }
};

class ThreadPool {
 public:
  // `threads` >= 1 in all: the thread that calls run() is thread 0. `cpus`: where to pin each thread (empty:
  // no pinning). The caller of run() is pinned for the time of the run only. Throws std::invalid_argument on
  // bad sizes and std::system_error if a CPU can't be had.
  ThreadPool(int threads, std::vector<int> cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  // Runs body(thread) on every thread and returns when all are done. Not reentrant. body must not throw:
  // the process would end.
  void run(const std::function<void(int)>& body);
  // Inside run(): waits until every thread of the pool has arrived. Meanwhile it prefetches what the thread
  // will read next, as far as there is time.
  void barrier(Upcoming upcoming = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace redoubt
