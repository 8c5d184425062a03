// The first exception in a run of the pool, on whichever thread.
#pragma once

#include <atomic>
#include <exception>

namespace redoubt {

class FirstFailure {
 public:
  bool has_failed() const { return failed_.load(std::memory_order_relaxed); }
  // Keeps the exception that is being handled, unless there is one already.
  void keep_current() {
    if (!failed_.exchange(true)) exception_ = std::current_exception();
  }
  // Rethrows it. Call it once all threads have met after the failure.
  void rethrow() const {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  std::atomic<bool> failed_{false};
  std::exception_ptr exception_;
};

}  // namespace redoubt
