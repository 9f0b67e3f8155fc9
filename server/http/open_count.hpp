#pragma once

#include <cstdint>

#include "base/mutex.hpp"

namespace cairn::http {

// How many connections are open in all threads, and the bound on it. Thread-safe.
class OpenCount {
 public:
  explicit OpenCount(std::uint32_t most) : most_(most) {}
  // False where it would be one too many.
  bool try_add();
  void remove();
  std::uint32_t value() const;
  // False where some are still open after `timeout_ms`.
  bool wait_none(std::uint32_t timeout_ms) const;

 private:
  const std::uint32_t most_;
  mutable Mutex mutex_;
  mutable Condition none_;
  std::uint32_t open_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn::http
