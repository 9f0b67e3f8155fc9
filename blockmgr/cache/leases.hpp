#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "blockmgr/cache/cache.hpp"
#include "blockmgr/index/block_store.hpp"
#include "blockmgr/index/lease_table.hpp"

namespace cairn {

class Section;

// state_conflict: nothing else may be done with it.
Error being_committed(SlotRef at);

// The leases of a cache and the pins that they hold. Part of a cache's state: every call has the
// section that holds the lock.
class Leases {
 public:
  explicit Leases(LeaseTable::Options options) : table_(options) {}

  // Of a lease that nobody knows yet, while a verb fills it step by step.
  static constexpr TimePoint kNotYet = TimePoint::max();
  struct Terms {
    TimePoint expires_at{};
    LeaseHolder holder = {};
    std::shared_ptr<BlockQuota> quota = {};
    std::shared_ptr<LeaseQuota> pins = {};
    NextUse told = NextUse::unknown;
  };
  UserNumber user_of(const LeaseHolder& holder) { return users_.number_of(holder); }
  // too_many where no more may be open.
  Result<> check_room() const;
  LeaseNumber open(Terms terms);  // REQUIRES: check_room()
  // One that is open and not overdue. unknown_cache, unknown_lease, lease_expired.
  Result<LeaseNumber> live(Section& section, const LeaseId& id);
  // The same without ending those that are overdue.
  std::optional<LeaseNumber> find(const LeaseId& id) const;
  // What is expected of the blocks that it holds when it ends.
  void tell(LeaseNumber lease, NextUse next_use) { table_[lease].told = next_use; }
  void renew(LeaseNumber lease, TimePoint expires_at) { table_.renew(lease, expires_at); }
  // It is nobody's from here on. Its pins go with it, those of a large one in steps: one at the end
  // of each section, or all by finish_releases().
  void end(Section& section, LeaseNumber lease, bool expired);
  // Ends those that are overdue, and lets all go that ended leases held. Gives way: for the start
  // of a verb.
  void end_overdue(Section& section);
  void end_all(Section& section);  // gives way
  void release_step(Section& section);
  // Gives way between its steps.
  void finish_releases(Section& section);

  const Lease& operator[](LeaseNumber lease) const { return table_[lease]; }
  // It holds these too, which have a pin for it already.
  void add(LeaseNumber lease, std::span<const SlotRef> slots);
  // It holds each of these once less, from the last to the first: it gives them up, as it does with
  // all of them at its end, or another lease holds them instead. An uncommitted block is that one's
  // from then on, and counts where it would have counted, unless that lease has a quota of its own.
  // Gives way between steps. foreign_lease: it did not hold all of them, and holds what it held.
  // unknown_lease, lease_expired, state_conflict (one is being committed): some may have gone.
  struct Parting {
    const LeaseId& from;
    std::optional<LeaseId> to = {};
    bool is_commits = false;  // whose marks they have
  };
  Result<> part_with(Section& section, const Parting& parting, std::span<const SlotRef> slots);

  // lease_quota where somebody's leases would hold more than they may; null: nobody's.
  static Result<> check_pins(const LeaseQuota* pins, std::uint64_t more);
  // lease_quota, too_many where leases would hold more than they may, all together.
  Result<> check_held(Section& section, std::uint64_t more) const;
  // The slot that a handle names, in the life that it names. unknown_tier, unknown_slot,
  // stale_generation.
  static Result<SlotRef> named(Section& section, const BlockHandle& handle);
  // The slot of an uncommitted block of that lease. unknown_tier, unknown_slot, stale_generation,
  // foreign_lease, state_conflict.
  Result<SlotRef> uncommitted(Section& section, LeaseNumber lease, const BlockHandle& handle) const;

  std::size_t size() const { return table_.size(); }
  LeaseNumber numbers_end() const { return table_.end(); }
  std::uint64_t expirations() const { return expirations_; }

 private:
  // Ends those that are overdue then, a step of them: false where more are left.
  bool end_step(Section& section, TimePoint overdue_at, bool expired);
  bool expire_step(Section& section);
  // Gives way.
  Result<LeaseNumber> bring_to_end(Section& section, const LeaseId& id,
                                   std::span<const SlotRef> slots);
  Result<> check_parting(Section& section, const Parting& parting,
                         std::span<const SlotRef> slots) const;
  struct Handover {
    LeaseNumber from = 0;
    LeaseNumber to = 0;
  };
  void hand_over(Section& section, Handover leases, std::span<const SlotRef> slots);

  LeaseTable table_;
  UserTable users_;
  // Of leases that have ended, what they still pin; each from its end.
  struct Releasing {
    std::vector<SlotRef> held;
    BlockStore::Telling telling = {};
  };
  static void release_last(Section& section, Releasing& lease, std::size_t count);
  std::deque<Releasing> releasing_;
  std::uint64_t expirations_ = 0;
};

}  // namespace cairn
