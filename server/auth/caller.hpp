#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/mutex.hpp"
#include "blockmgr/index/block_quota.hpp"
#include "blockmgr/index/lease_quota.hpp"
#include "blockmgr/index/memory_quota.hpp"

namespace cairn {

// What a route asks of who calls it, and what a token grants: each may do all that those before it
// may, but for `metrics` and `peer`, which may do nothing else.
enum class Role : std::uint8_t {
  none,     // no token is needed
  metrics,  // what a monitoring system asks for
  peer,     // read blocks by key, for other servers
  read,     // match, read and look
  write,    // and store, move and evict blocks
  admin,    // and make, drop and clear caches
};
std::string_view to_string(Role role);

// What the leases of one token may hold, a block as often as it is held, where nobody says
// otherwise: four of the largest matches at once, half a terabyte of blocks of 2 MiB.
inline constexpr std::uint64_t kMaxLeasedBlocks = 4 * 65'536;

// Who sends a request: the rights of a token, and how much of them is used up. Thread-safe.
class Caller {
 public:
  struct Rights {
    std::string name = {};  // for people and the log; never the token
    Role role = Role::none;
    std::vector<std::string> caches = {};  // empty: every one
    BlockQuota::Limits max_blocks = BlockQuota::kNoLimits;
    std::uint64_t max_leased_blocks = kMaxLeasedBlocks;
    std::uint64_t max_registered_bytes = UINT64_MAX;
    std::uint32_t requests_per_s = 0;  // 0: no limit
  };
  explicit Caller(Rights rights);

  const std::string& name() const { return *name_; }
  // The same, for what outlives the token.
  const LeaseHolder& holder() const { return name_; }
  Role role() const { return rights_.role; }
  // Null where there is no limit.
  const std::shared_ptr<BlockQuota>& quota() const { return quota_; }
  const std::shared_ptr<LeaseQuota>& pins() const { return pins_; }
  // Host memory that it registers as agents.
  const std::shared_ptr<MemoryQuota>& registered() const { return registered_; }
  // Goes on with what this token had used before its file was read again.
  void go_on_from(const Caller& before);
  bool has_same_token(const Caller& other) const { return pins_ == other.pins_; }
  const std::vector<std::string>& caches() const { return rights_.caches; }  // empty: every one
  bool may(Role role) const;
  bool is_confined() const { return !rights_.caches.empty(); }
  bool may_touch(std::string_view cache) const;
  // Counts a request; false where it is one too many. Up to a second's requests may come at once.
  bool take_request(TimePoint now) const;

 private:
  const Rights rights_;
  const LeaseHolder name_;
  std::shared_ptr<BlockQuota> quota_;
  std::shared_ptr<LeaseQuota> pins_;
  std::shared_ptr<MemoryQuota> registered_;
  mutable Mutex mutex_;
  // When the requests taken so far are paid for, at the rate.
  mutable TimePoint paid_until_ CAIRN_GUARDED_BY(mutex_);
};

// forbidden: what is answered to a caller that may not.
Error lacks_role(const Caller& caller, Role role);

}  // namespace cairn
