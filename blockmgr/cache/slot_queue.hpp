#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "base/unique_function.hpp"
#include "blockmgr/index/slot_ref.hpp"
#include "blockmgr/index/stats.hpp"
#include "blockmgr/index/types.hpp"

namespace cairn {

class Section;

// Somebody who asked for slots of a tier.
struct SlotRequest {
  std::uint64_t id = 0;  // 0: the queue gives it one
  std::uint32_t count = 0;
  std::uint8_t priority = 50;
  bool takes_fewer = false;  // one slot or more will do, where no more can come
  // Runs under the lock with the allocated slots, each with one pin that it takes over, or with the
  // reason why there are none.
  UniqueFunction<void(Section&, Result<std::span<const SlotRef>>)> granted = {};
  std::vector<SlotRef> taken = {};  // the queue's: so many it has so far
  TimePoint asked = {};             // the queue's
};

// Slots for those who ask: free ones first, then evicted ones, strictly in the order of asking.
// Part of a cache's state: every call has the section that holds the lock.
class SlotQueue {
 public:
  // Takes the request, and serves it now where it can. no_capacity, queue_full where it cannot be
  // granted now or later; the request is then as it was.
  Result<> ask(Section& section, Tier tier, SlotRequest&& request);
  std::uint64_t next_id() { return ++last_id_; }
  // Its `granted` hears the error. Nothing where there is no such request.
  void cancel(Section& section, Tier tier, std::uint64_t id, const Error& error);
  void cancel_all(Section& section, Tier tier, const Error& error);
  // Slots taken for those who wait, less those given back by who was refused in the end.
  std::int64_t taken() const { return taken_; }
  bool any_waits(Tier tier) const { return !requests_[index_of(tier)].empty(); }
  std::uint64_t attainable(Section& section, Tier tier) const;  // that a new request could hope for
  // Grants what can be granted, and evicts for the rest: a step of it, after which the section
  // goes on.
  void serve(Section& section, Tier tier);
  struct Reclaim {
    std::uint64_t count = 0;
    EvictionReason reason = EvictionReason::capacity;
    bool may_depart = true;  // else nobody is given a block before it is dropped
  };
  // Evicts up to so many copies, and a step's at most; answers how many went or began to leave.
  std::uint64_t reclaim(Section& section, Tier tier, Reclaim wanted);

 private:
  std::uint64_t demand(Tier tier) const;  // what those who wait still lack
  SlotRequest take_first(Tier tier);
  void take_free(Section& section, Tier tier, SlotRequest& request);
  void give_back(Section& section, SlotRequest& request);

  std::array<std::deque<SlotRequest>, kNumTiers> requests_;
  std::uint64_t last_id_ = 0;
  std::int64_t taken_ = 0;
};

}  // namespace cairn
