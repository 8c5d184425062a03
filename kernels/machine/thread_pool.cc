// The pool's threads, and one waiting primitive for both the barrier and the sleep between runs: a generation
// number that is watched with pauses for a while, then with yields, then in a futex. Knows nothing of what is
// run.
//
// On a shared machine a thread can lose its core for milliseconds, and the others wait for it in the barrier.
// So a waiting thread spins only for as long as a barrier usually takes, and then yields its core to others.
// It goes on yielding for longer than there usually is between two steps, and sleeps only then, because
// waking it takes long in a virtual machine. Measured in docs/tuning.md.
#include "machine/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace redoubt {
namespace {

// Spinning lasts longer than one linear layer of a small model takes.
constexpr int kSpinPauses = 1000;
constexpr auto kYieldingTime = std::chrono::microseconds(1000);
// Prefetched on arrival: even the thread that comes last has other work to do before it reads them.
constexpr size_t kArrivalBytes = 4096;
// Prefetched between two looks at the barrier.
constexpr size_t kWaitBytes = 256;

inline void pause_cpu() { __builtin_ia32_pause(); }

// A number that one thread advances and others wait to see changed.
class alignas(64) Generation {
 public:
  uint32_t load() const { return value_.load(std::memory_order_acquire); }

  void advance() {
    // seq_cst, as in wait_while(): either this thread sees the sleeper, or the sleeper sees the new value.
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) {
      syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    }
  }

  void wait_while(uint32_t seen, Upcoming upcoming = {}) {
    while (upcoming.bytes != 0) {
      if (load() != seen) return;
      upcoming.request(kWaitBytes);
    }
    for (int i = 0; i < kSpinPauses; ++i) {
      if (load() != seen) return;
      pause_cpu();
    }
    using Clock = std::chrono::steady_clock;
    for (const auto end = Clock::now() + kYieldingTime; Clock::now() < end; sched_yield()) {
      if (load() != seen) return;
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (value_.load(std::memory_order_seq_cst) == seen) {
      syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the futex word");

// Returns 0, or the errno.
int pin_this_thread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

// An exception would leave the other threads waiting, so it ends the process on every thread.
void call(const std::function<void(int)>& body, int thread) noexcept { body(thread); }

// Pins the calling thread for a scope, then gives it back the CPUs that it had.
class ScopedPin {
 public:
  explicit ScopedPin(int cpu) {
    if (cpu < 0 || pthread_getaffinity_np(pthread_self(), sizeof before_, &before_) != 0) return;
    error_ = pin_this_thread(cpu);
    pinned_ = error_ == 0;
  }
  ~ScopedPin() {
    if (pinned_) pthread_setaffinity_np(pthread_self(), sizeof before_, &before_);
  }
  ScopedPin(const ScopedPin&) = delete;
  ScopedPin& operator=(const ScopedPin&) = delete;
  int error() const { return error_; }

 private:
  cpu_set_t before_;
  int error_ = 0;
  bool pinned_ = false;
};

[[noreturn]] void throw_cannot_pin(int cpu, int error) {
  throw std::system_error(error, std::generic_category(), "can't pin a thread to CPU " + std::to_string(cpu));
}

void check_sizes(int threads, const std::vector<int>& cpus) {
  if (threads < 1) throw std::invalid_argument("threads: " + std::to_string(threads) + " is less than 1");
  if (!cpus.empty() && cpus.size() != size_t(threads)) {
    throw std::invalid_argument("cpus: " + std::to_string(cpus.size()) + " CPUs for " +
                                std::to_string(threads) + " threads");
  }
  for (int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) {
      throw std::invalid_argument("cpus: " + std::to_string(cpu) + " is not a CPU's number");
    }
  }
}

}  // namespace

struct ThreadPool::State {
  int threads;
  std::vector<int> cpus;
  std::vector<std::thread> workers;

  Generation runs;
  Generation barriers;
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) const std::function<void(int)>* body = nullptr;
  bool stopping = false;
  std::atomic<int> started{0};
  std::atomic<int> pin_error{0};

  int cpu_of(int thread) const { return cpus.empty() ? -1 : cpus[size_t(thread)]; }

  void barrier(Upcoming upcoming) {
    if (threads == 1) return;
    upcoming.request(kArrivalBytes);
    const uint32_t seen = barriers.load();
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
      arrived.store(0, std::memory_order_relaxed);
      barriers.advance();
    } else {
      barriers.wait_while(seen, upcoming);
    }
  }

  void work(int thread) {
    if (const int cpu = cpu_of(thread); cpu >= 0) pin_error = pin_this_thread(cpu);
    started.store(thread);
    started.notify_one();
    for (uint32_t run = 0;; ++run) {
      runs.wait_while(run);
      if (stopping) return;
      call(*body, thread);
      barrier({});
    }
  }

  // Starts the next worker and waits until it is pinned.
  void start(int thread) {
    workers.emplace_back([this, thread] { work(thread); });
    started.wait(thread - 1);
    if (pin_error != 0) throw_cannot_pin(cpu_of(thread), pin_error);
  }

  ~State() {
    stopping = true;
    runs.advance();
    for (std::thread& worker : workers) worker.join();
  }
};

ThreadPool::ThreadPool(int threads, std::vector<int> cpus) {
  check_sizes(threads, cpus);
  state_ = std::make_unique<State>();
  State& s = *state_;
  s.threads = threads;
  s.cpus = std::move(cpus);
  if (const int error = ScopedPin(s.cpu_of(0)).error(); error != 0) throw_cannot_pin(s.cpu_of(0), error);
  for (int thread = 1; thread < threads; ++thread) s.start(thread);
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const { return state_->threads; }

void ThreadPool::run(const std::function<void(int)>& body) {
  State& s = *state_;
  const ScopedPin pin(s.cpu_of(0));
  if (s.threads > 1) {
    s.body = &body;
    s.runs.advance();
  }
  call(body, 0);
  s.barrier({});
}

void ThreadPool::barrier(Upcoming upcoming) { state_->barrier(upcoming); }

}  // namespace redoubt
