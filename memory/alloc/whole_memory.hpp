#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "base/mutex.hpp"
#include "memory/region.hpp"

namespace cairn {

// Memory that is used whole, from its beginning to its end. It comes back when its Region is
// destroyed, and up to a limit it is kept for the next use of the same kind. Exists as long as any
// of its memory is in use. Thread-safe.
class WholeMemory {
 public:
  explicit WholeMemory(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  struct Kind {
    std::uint64_t size_bytes = 0;
    bool by_descriptor = false;
    auto operator<=>(const Kind&) const = default;
  };
  // The same memory, in use until the returned Region is destroyed. Memory that was shared or
  // partly freed meanwhile is not kept: other processes may still have it.
  static Region lend(const std::shared_ptr<WholeMemory>& self, Region region, const Kind& kind);
  // Kept memory with its last user's bytes; empty if there is none of that kind.
  Region take_idle(const Kind& kind);
  // Frees the kept memory. `for_good`: keeps nothing from now on.
  void empty(bool for_good);

  struct Now {
    std::uint64_t used_bytes = 0;
    std::uint64_t used = 0;
    std::uint64_t idle_bytes = 0;  // at most the limit
    std::uint64_t idle = 0;
    std::uint64_t largest_idle_bytes = 0;
    std::uint64_t frees = 0;
  };
  Now now() const;

 private:
  class Backing;
  // Memory that is not kept still belongs to the caller, which frees it.
  void take_back(Region& region, const Kind& kind, bool may_stay);

  const std::uint64_t limit_bytes_;
  mutable Mutex mutex_;
  std::multimap<Kind, Region> idle_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t idle_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t used_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t used_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t frees_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool closed_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
