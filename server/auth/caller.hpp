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

// The rights that a route requires and a token grants. Each role includes those before it, except
// `metrics` and `peer`, which grant nothing else.
enum class Role : std::uint8_t {
  none,     // no token needed
  metrics,  // for monitoring systems
  peer,     // for other servers: read blocks by key, prefetch
  read,     // match, read and inspect
  write,    // also store, move and evict blocks
  admin,    // also create, drop and clear caches
};
std::string_view to_string(Role role);

// Default limit of blocks that one token's leases may hold; a block counts once per lease. Four of
// the largest matches at once: half a terabyte of blocks of 2 MiB.
inline constexpr std::uint64_t kMaxLeasedBlocks = 4 * 65'536;

// The sender of a request: a token's rights, and how much of them is used. Thread-safe.
class Caller {
 public:
  struct Rights {
    std::string name = {};  // for people and the log; never the token
    Role role = Role::none;
    std::vector<std::string> caches = {};  // empty: all
    BlockQuota::Limits max_blocks = BlockQuota::kNoLimits;
    std::uint64_t max_leased_blocks = kMaxLeasedBlocks;
    std::uint64_t max_registered_bytes = UINT64_MAX;
    std::uint32_t requests_per_s = 0;  // 0: no limit
  };
  explicit Caller(Rights rights);

  const std::string& name() const { return *name_; }
  // The name, for what outlives the token.
  const LeaseHolder& holder() const { return name_; }
  Role role() const { return rights_.role; }
  // Null if there is no limit.
  const std::shared_ptr<BlockQuota>& quota() const { return quota_; }
  const std::shared_ptr<LeaseQuota>& pins() const { return pins_; }
  // Host memory that it has registered as agents.
  const std::shared_ptr<MemoryQuota>& registered() const { return registered_; }
  // Takes over what this token has used, after the tokens file was read again.
  void go_on_from(const Caller& before);
  bool has_same_token(const Caller& other) const { return pins_ == other.pins_; }
  const std::vector<std::string>& caches() const { return rights_.caches; }  // empty: all
  bool may(Role role) const;
  bool is_confined() const { return !rights_.caches.empty(); }
  bool may_touch(std::string_view cache) const;
  // Counts a request. Returns false if it is one too many. Up to one second's requests may come at
  // once.
  bool take_request(TimePoint now) const;

 private:
  const Rights rights_;
  const LeaseHolder name_;
  std::shared_ptr<BlockQuota> quota_;
  std::shared_ptr<LeaseQuota> pins_;
  std::shared_ptr<MemoryQuota> registered_;
  mutable Mutex mutex_;
  // When the rate allows a full burst again.
  mutable TimePoint paid_until_ CAIRN_GUARDED_BY(mutex_);
};

// The forbidden error for a caller without `role`.
Error lacks_role(const Caller& caller, Role role);

}  // namespace cairn
