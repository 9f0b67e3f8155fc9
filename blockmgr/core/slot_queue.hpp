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

class CacheLock;

// A request for slots of a tier.
struct SlotRequest {
  std::uint64_t id = 0;  // 0: the queue sets it
  std::uint32_t count = 0;
  // Of each slot's block; empty: group 0. Slots are given in this order.
  std::vector<KvGroupNumber> kv_groups = {};
  std::uint8_t priority = 50;
  bool takes_fewer = false;  // one slot or more will do if the rest cannot come
  // Runs under the lock. Gets the slots, each with one pin to take over, or the error.
  UniqueFunction<void(CacheLock&, Result<std::span<const SlotRef>>)> granted = {};
  std::vector<SlotRef> taken = {};  // slots it has so far; set by the queue
  std::uint64_t units = 0;          // that it still lacks; set by the queue
  TimePoint asked = {};             // set by the queue
};

// Gives slots to requests, strictly in their order: free slots first, then evicted ones. Part of a
// cache's state: each call takes the CacheLock.
class SlotQueue {
 public:
  // Takes the request, and serves it now if possible. Errors: no_capacity, queue_full if it cannot
  // be granted now or later; `request` is then unchanged.
  Result<> ask(CacheLock& locked, Tier tier, SlotRequest&& request);
  std::uint64_t next_id() { return ++last_id_; }
  // Passes the error to the request's `granted`. No effect if there is no such request.
  void cancel(CacheLock& locked, Tier tier, std::uint64_t id, const Error& error);
  void cancel_all(CacheLock& locked, Tier tier, const Error& error);
  // Slots taken for requests, without those given back by requests that failed in the end.
  std::int64_t taken() const { return taken_; }
  bool any_waits(Tier tier) const { return !requests_[index_of(tier)].empty(); }
  std::uint64_t attainable(CacheLock& locked, Tier tier) const;  // units a new request can hope for
  // How many blocks can hope for slots, from the first one on. `kv_groups` as in SlotRequest.
  struct Wanted {
    std::size_t count = 0;
    std::span<const KvGroupNumber> kv_groups = {};
  };
  std::size_t fitting(CacheLock& locked, Tier tier, const Wanted& wanted) const;
  // Grants what can be granted and evicts for the rest, one step of it. The lock goes on later.
  void serve(CacheLock& locked, Tier tier);
  struct Reclaim {
    std::uint64_t units = 0;
    EvictionReason reason = EvictionReason::capacity;
    bool may_go_remote = true;  // false: drops blocks without the taker of EvictToRemote
  };
  // Evicts copies until their units are enough, one step at most. Returns the units that left or
  // began to leave.
  std::uint64_t reclaim(CacheLock& locked, Tier tier, Reclaim wanted);

 private:
  std::uint64_t demand(Tier tier) const;  // units that waiting requests still lack
  SlotRequest take_first(Tier tier);
  void take_free(CacheLock& locked, Tier tier, SlotRequest& request);
  void give_back(CacheLock& locked, SlotRequest& request);

  std::array<std::deque<SlotRequest>, kNumTiers> requests_;
  std::uint64_t last_id_ = 0;
  std::int64_t taken_ = 0;
};

}  // namespace cairn
