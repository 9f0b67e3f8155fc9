#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "blockmgr/index/block_store.hpp"
#include "blockmgr/index/lease_table.hpp"

namespace cairn {

class CacheLock;

// Returns a state_conflict error for a slot that is being committed.
Error being_committed(SlotRef at);

// The leases of a cache and the pins that they hold. Part of a cache's state: each call takes the
// CacheLock.
class Leases {
 public:
  explicit Leases(LeaseTable::Options options) : table_(options) {}

  // The expiry of a lease that an operation still fills in steps, before any client knows it.
  static constexpr TimePoint kNotYet = TimePoint::max();
  struct Terms {
    TimePoint expires_at{};
    LeaseHolder holder = {};
    std::shared_ptr<BlockQuota> quota = {};
    std::shared_ptr<LeaseQuota> pins = {};
    NextUse hinted = NextUse::unknown;
  };
  UserNumber user_of(const LeaseHolder& holder) { return users_.number_of(holder); }
  // Error: too_many if no more leases may be open.
  Result<> check_room() const;
  LeaseNumber open(Terms terms);  // REQUIRES: check_room()
  // Finds a lease that is open and not overdue; ends overdue ones. Errors: unknown_cache,
  // unknown_lease, lease_expired.
  Result<LeaseNumber> live(CacheLock& locked, const LeaseId& id);
  // Finds an open lease, also if it is overdue, and ends none. nullopt if it is not open.
  std::optional<LeaseNumber> find(const LeaseId& id) const;
  // Sets the expected next use of the blocks that it holds, applied when it ends.
  void hint(LeaseNumber lease, NextUse next_use) { table_[lease].hinted = next_use; }
  void renew(LeaseNumber lease, TimePoint expires_at) { table_.renew(lease, expires_at); }
  // Closes the lease and releases its pins. A large lease releases them in steps: one at the end of
  // each hold of the lock, or all of them in finish_releases().
  void end(CacheLock& locked, LeaseNumber lease, bool expired);
  // Ends overdue leases, and releases everything that ended leases held. Releases the lock between
  // steps, so call it at the start of an operation.
  void end_overdue(CacheLock& locked);
  void end_all(CacheLock& locked);  // releases the lock between steps
  void release_step(CacheLock& locked);
  // Releases the lock between steps.
  void finish_releases(CacheLock& locked);

  const Lease& operator[](LeaseNumber lease) const { return table_[lease]; }
  // Adds slots that are already pinned for this lease.
  void add(LeaseNumber lease, std::span<const SlotRef> slots);
  // Takes these slots from a lease, from the last to the first, each once per mention. The lease
  // `to` holds them from then on; without it they are released, as at the end of a lease. `to`
  // becomes the owner of uncommitted blocks, and gets the quota of `from` unless it has one.
  // Releases the lock between steps. Errors:
  // - foreign_lease: the lease does not hold all of them; it keeps what it holds.
  // - unknown_lease, lease_expired, state_conflict (one is being committed): some may already be
  //   gone.
  struct Parting {
    const LeaseId& from;
    std::optional<LeaseId> to = {};
    bool is_commits = false;  // the caller is the commit that has marked them
  };
  Result<> part_with(CacheLock& locked, const Parting& parting, std::span<const SlotRef> slots);

  // Error: lease_quota if the owner's leases would hold more blocks than allowed. Null: no quota.
  static Result<> check_pins(const LeaseQuota* pins, std::uint64_t more);
  // Errors: lease_quota, too_many if all leases together would hold more blocks than allowed.
  Result<> check_held(CacheLock& locked, std::uint64_t more) const;
  // The slot that a handle names, if it still has the handle's generation. Errors: unknown_tier,
  // unknown_slot, stale_generation.
  static Result<SlotRef> named(CacheLock& locked, const BlockHandle& handle);
  // The slot of an uncommitted block that the lease owns. Errors: unknown_tier, unknown_slot,
  // stale_generation, foreign_lease, state_conflict.
  Result<SlotRef> uncommitted(CacheLock& locked, LeaseNumber lease,
                              const BlockHandle& handle) const;

  bool is_releasing() const { return !releasing_.empty(); }
  std::size_t size() const { return table_.size(); }
  LeaseNumber numbers_end() const { return table_.end(); }
  std::uint64_t expirations() const { return expirations_; }

 private:
  // Ends leases that are overdue at that time, one step of them. Returns false if more are left.
  bool end_step(CacheLock& locked, TimePoint overdue_at, bool expired);
  bool expire_step(CacheLock& locked);
  // Moves these slots to the end of the lease's list. May release the lock.
  Result<LeaseNumber> bring_to_end(CacheLock& locked, const LeaseId& id,
                                   std::span<const SlotRef> slots);
  Result<> check_parting(CacheLock& locked, const Parting& parting,
                         std::span<const SlotRef> slots) const;
  struct Handover {
    LeaseNumber from = 0;
    LeaseNumber to = 0;
  };
  void hand_over(CacheLock& locked, Handover leases, std::span<const SlotRef> slots);

  LeaseTable table_;
  UserTable users_;
  // What ended leases still pin. Each list is released from its end.
  struct Releasing {
    std::vector<SlotRef> held;
    BlockStore::UseHint use_hint = {};
  };
  static void release_last(CacheLock& locked, Releasing& lease, std::size_t count);
  std::deque<Releasing> releasing_;
  std::uint64_t expirations_ = 0;
};

}  // namespace cairn
