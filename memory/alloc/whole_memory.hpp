#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "base/mutex.hpp"
#include "memory/region.hpp"

namespace cairn {

// Memory that is used whole, from its beginning to its end: what is lent comes back when the Region
// goes, and so many bytes of it are kept for the next of the same kind. It is there as long as any
// of its memory is lent. Thread-safe.
class WholeMemory {
 public:
  explicit WholeMemory(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  struct Kind {
    std::uint64_t size_bytes = 0;
    bool by_descriptor = false;
    auto operator<=>(const Kind&) const = default;
  };
  // The same memory, lent until the Region that this answers goes. What was shared or let go in
  // part meanwhile is not kept: others may have it still.
  static Region lend(const std::shared_ptr<WholeMemory>& self, Region region, const Kind& kind);
  // Kept memory with its last user's bytes; empty: there is none of that kind.
  Region take_idle(const Kind& kind);
  // What is kept goes. `for_good`: nothing is kept from now on.
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
  // What does not stay is the caller's still, and goes by his hand.
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
