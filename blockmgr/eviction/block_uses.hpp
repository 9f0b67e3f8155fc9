#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "blockmgr/eviction/ghost_table.hpp"
#include "blockmgr/eviction/policy.hpp"

namespace cairn {

// Assigns the uses of a cache's blocks to requests: a cache sees matches and commits, a policy
// needs requests. A stored block belongs to the request whose match missed it, or else to the
// request that last used its parent. Not thread-safe.
class BlockUses {
 public:
  struct Options {
    EvictionKind eviction = EvictionKind::class_hazard;
    std::uint32_t capacity_blocks = 0;
    std::uint64_t ghost_bytes = 0;  // limit for the histories of evicted blocks
  };
  explicit BlockUses(const Options& options);

  const EvictionPolicy& policy() const { return *policy_; }

  // Begins a match of `blocks` keys. The same match again soon after is the same request: engines
  // look first, then take a lease.
  struct Match {
    std::uint32_t blocks = 0;
    std::uint64_t last_key_hash = 0;
    std::int64_t unix_ms = 0;
  };
  RequestNumber begin_match(const Match& match);
  void found(BlockHistory& block, RequestNumber request, bool is_hub) {
    use(block, request, is_hub);
  }
  // The first key that the request missed.
  void missed(std::uint64_t key_hash, RequestNumber request) {
    place(expected_, key_hash) = {key_hash, request, 1};
  }

  // Prefetches the history of a block that is about to be stored.
  void prefetch(std::uint64_t key_hash) const { ghosts_.prefetch(key_hash); }
  struct Stored {
    std::uint64_t key_hash = 0;
    const BlockHistory* parent = nullptr;  // null if it has none, or it is not in the cache
    bool is_hub = false;
    std::int64_t unix_ms = 0;
  };
  void stored(BlockHistory& block, const Stored& stored);
  // Adds a block that an earlier run left, with that run's record of it. Call in the order of last
  // use. Blocks without a readable record count as stored by one request.
  struct Restored {
    std::uint64_t kept = 0;  // see EvictionPolicy::kept()
    NextUse hinted = NextUse::unknown;
  };
  void restored(BlockHistory& block, const Restored& restored);
  void listed(BlockHistory& block, NextUse hinted) { policy_->listed(block, hinted); }
  // Begins a hint for blocks that are not used now. It counts as a request that takes no time. Call
  // rehinted() for each block.
  RequestNumber begin_hint(NextUse next_use, std::int64_t unix_ms);
  void rehinted(BlockHistory& block, RequestNumber hint) { policy_->rehinted(block, hint); }
  // Call when the block's last copy is removed.
  void gone(const BlockHistory& block, std::uint64_t key_hash) {
    ghosts_.remember(key_hash, block);
  }
  std::optional<std::uint32_t> ended(RequestNumber request, const RequestEnd& end) {
    return policy_->ended(request, end);
  }

  // See EvictionPolicy.
  std::vector<std::byte> learnt() { return policy_->learnt(); }
  bool take_learnt(std::span<const std::byte> learnt) { return policy_->take_learnt(learnt); }

  std::uint32_t ghost_count() const { return ghosts_.size(); }
  std::uint64_t memory_bytes() const { return ghosts_.memory_bytes() + policy_->memory_bytes(); }

 private:
  void use(BlockHistory& block, RequestNumber request, bool is_hub) {
    if (policy_->touched(block, request) && is_hub) block.is_hub = true;
  }

  // By the highest bits of a hash: the last matches, and the blocks expected to be stored.
  struct Seen {
    std::uint64_t key_hash = 0;
    RequestNumber request = 0;
    std::uint32_t blocks = 0;
  };
  static constexpr int kSeenBits = 8;  // enough for all frontends
  using SeenTable = std::array<Seen, std::size_t{1} << kSeenBits>;
  static Seen& place(SeenTable& table, std::uint64_t key_hash) {
    return table[key_hash >> (64 - kSeenBits)];
  }

  // The latest hints of a kind, and the latest request of another kind by then.
  struct Hints {
    RequestNumber request = 0;
    RequestNumber of_used = 0;
    std::int64_t unix_ms = 0;
  };

  std::unique_ptr<EvictionPolicy> policy_;
  GhostTable ghosts_;
  std::array<Hints, kNextUses> hints_{};
  RequestNumber last_used_ = 0;
  SeenTable asked_;
  SeenTable expected_;
  RequestNumber last_ = 0;
  RequestNumber restoring_ = 0;  // 0: none yet
};

}  // namespace cairn
