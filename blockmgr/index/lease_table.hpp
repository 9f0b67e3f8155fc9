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
  std::vector<SlotRef> held;               // a slot as often as the lease pins it
  std::uint64_t changes = 0;               // of what is held, but for its order
  std::shared_ptr<BlockQuota> quota = {};  // what is committed under it counts there
  std::shared_ptr<LeaseQuota> pins = {};   // what it holds counts there
  std::size_t counted = 0;                 // of `held`, in `pins`
  UserNumber user = kSeveralUsers;
  NextUse told = NextUse::unknown;  // of what it holds, when it ends
  LeaseHolder holder = {};
  bool is_open = false;
};

// The leases of a cache: who holds which slots until when. Pinning is its user's affair. Not
// thread-safe.
class LeaseTable {
 public:
  // Of leases that ran out, so many are remembered, to tell a client that its lease has expired
  // from one that makes ids up.
  static constexpr std::size_t kRememberedExpired = 4096;

  struct Options {
    std::uint32_t cache = 0;
    std::uint32_t max_leases = 0;
  };
  explicit LeaseTable(Options options) : options_(options) {}

  bool full() const { return by_secret_.size() >= options_.max_leases; }
  std::size_t size() const { return by_secret_.size(); }
  LeaseNumber open(TimePoint expires_at, LeaseHolder holder = {});  // REQUIRES: !full()
  // unknown_lease, lease_expired. The answer may be overdue.
  Result<LeaseNumber> find(const LeaseId& id) const;
  Lease& operator[](LeaseNumber number) { return leases_[number]; }
  const Lease& operator[](LeaseNumber number) const { return leases_[number]; }
  // To be called whenever `held` has changed: counts it where it counts.
  void count(LeaseNumber number);
  void renew(LeaseNumber number, TimePoint expires_at);
  // Its id is unknown from here on, or answers lease_expired.
  void close(LeaseNumber number, bool expired);

  std::optional<LeaseNumber> overdue(TimePoint now) const;
  // Leases are numbered below this, closed ones too; one keeps its number while it is open.
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
  // Exact, where a heap with lazy deletion would grow by every lease released before its time.
  std::set<std::pair<TimePoint, LeaseNumber>> by_end_;
  // A ring. Looked through for an id that nobody has (3 us), so that a lease that runs out, as most
  // do under a frontend that never releases, costs a store and no lookup.
  std::vector<Secret> expired_;
  std::size_t next_expired_ = 0;
};

}  // namespace cairn
