#pragma once

#include <cstdint>
#include <memory>

#include "base/mutex.hpp"

namespace cairn::http {

// How many connections are open in all threads, and the bound on it. Thread-safe.
class OpenCount {
 public:
  // One connection's place, given back at its end wherever that is. Null: there was none.
  struct GiveBack {
    void operator()(OpenCount* count) const { count->remove(); }
  };
  using Place = std::unique_ptr<OpenCount, GiveBack>;

  explicit OpenCount(std::uint32_t most) : most_(most) {}
  Place take_place();
  std::uint32_t value() const;
  // False where some are still open after `timeout_ms`.
  bool wait_none(std::uint32_t timeout_ms) const;

 private:
  void remove();

  const std::uint32_t most_;
  mutable Mutex mutex_;
  mutable Condition none_;
  std::uint32_t open_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn::http
