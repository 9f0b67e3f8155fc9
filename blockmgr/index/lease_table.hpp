#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/random.hpp"
#include "base/result.hpp"
#include "blockmgr/eviction/reuse_hint.hpp"
#include "blockmgr/index/block_quota.hpp"
#include "blockmgr/index/lease_quota.hpp"
#include "blockmgr/index/slot_ref.hpp"
#include "blockmgr/index/user_table.hpp"

namespace cairn {

using LeaseNumber = std::uint32_t;

struct Lease {
  LeaseId id;
  TimePoint expires_at{};
  std::vector<SlotRef> held;               // a slot appears once per pin
  std::uint64_t changes = 0;               // of `held`, except in its order
  std::shared_ptr<BlockQuota> quota = {};  // counts blocks committed under the lease
  std::shared_ptr<LeaseQuota> pins = {};   // counts blocks that the lease holds
  std::size_t counted = 0;                 // how many of `held` are counted in `pins`
  UserNumber user = kSeveralUsers;
  NextUse hinted = NextUse::unknown;  // a hint for the held blocks, applied when the lease ends
  LeaseHolder holder = {};
  bool is_open = false;
};

// The leases of a cache: who holds which slots until when. The caller does the pinning. Not
// thread-safe.
class LeaseTable {
 public:
  // The number of expired leases remembered, to tell a client whose lease expired from one that
  // invents ids.
  static constexpr std::size_t kRememberedExpired = 4096;

  struct Options {
    std::uint32_t cache = 0;
    std::uint32_t max_leases = 0;
  };
  explicit LeaseTable(Options options) : options_(options) {}

  bool full() const { return by_secret_.size() >= options_.max_leases; }
  std::size_t size() const { return by_secret_.size(); }
  LeaseNumber open(TimePoint expires_at, LeaseHolder holder = {});  // REQUIRES: !full()
  // Errors: unknown_lease, lease_expired. The lease found may be overdue.
  Result<LeaseNumber> find(const LeaseId& id) const;
  Lease& operator[](LeaseNumber number) { return leases_[number]; }
  const Lease& operator[](LeaseNumber number) const { return leases_[number]; }
  // Call after every change of `held`. Updates `pins`.
  void count(LeaseNumber number);
  void renew(LeaseNumber number, TimePoint expires_at);
  // Afterwards find() returns lease_expired if `expired`, else unknown_lease.
  void close(LeaseNumber number, bool expired);

  std::optional<LeaseNumber> overdue(TimePoint now) const;
  // All lease numbers are below this, those of closed leases too. A lease keeps its number while
  // open.
  LeaseNumber end() const { return static_cast<LeaseNumber>(leases_.size()); }

 private:
  using Secret = std::array<std::byte, 12>;
  struct SecretHash {
    std::size_t operator()(const Secret& secret) const;
  };

  const Options options_;
  RandomBytes random_;
  std::deque<Lease> leases_;
  std::vector<LeaseNumber> unused_;
  std::unordered_map<Secret, LeaseNumber, SecretHash> by_secret_;
  // Exact: a heap with lazy deletion would grow by every lease released early.
  std::set<std::pair<TimePoint, LeaseNumber>> by_end_;
  // A ring, searched linearly for an unknown id (3 us). So an expiry costs one store and no hash
  // lookup; most leases expire under a frontend that never releases.
  std::vector<Secret> expired_;
  std::size_t next_expired_ = 0;
};

}  // namespace cairn
