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

// Who asked for which blocks of a cache, as its policy needs to know it: a cache sees matches and
// commits, a policy requests. What a request stores belongs to the match that missed it, or else to
// the request that its parent was last used by. Not thread-safe.
class BlockUses {
 public:
  struct Options {
    EvictionKind eviction = EvictionKind::class_hazard;
    std::uint32_t capacity_blocks = 0;
    std::uint64_t ghost_bytes = 0;  // at most, of what is remembered of blocks that are gone
  };
  explicit BlockUses(const Options& options);

  const EvictionPolicy& policy() const { return *policy_; }

  // A match of so many keys begins. One that asks for the same again at once is the same request:
  // engines look first and take a lease then.
  struct Match {
    std::uint32_t blocks = 0;
    std::uint64_t last_key_hash = 0;
    std::int64_t unix_ms = 0;
  };
  RequestNumber begin_match(const Match& match);
  void found(BlockHistory& block, RequestNumber request, bool is_hub) {
    use(block, request, is_hub);
  }
  // This is the first key that it missed.
  void missed(std::uint64_t key_hash, RequestNumber request) {
    place(expected_, key_hash) = {key_hash, request, 1};
  }

  // Brings near what is known of a block that is to be stored.
  void prefetch(std::uint64_t key_hash) const { ghosts_.prefetch(key_hash); }
  struct Stored {
    std::uint64_t key_hash = 0;
    const BlockHistory* parent = nullptr;  // null: there is none, or it is not here
    bool is_hub = false;
    std::int64_t unix_ms = 0;
  };
  void stored(BlockHistory& block, const Stored& stored);
  // An earlier run left it, with what it noted then. In the order of last use; those of which
  // nothing can be read count as stored by one request.
  struct Restored {
    std::uint64_t kept = 0;  // see EvictionPolicy::kept()
    NextUse told = NextUse::unknown;
  };
  void restored(BlockHistory& block, const Restored& restored);
  void listed(BlockHistory& block, NextUse told) { policy_->listed(block, told); }
  // Somebody says what he expects of blocks that he does not use now: as a request that takes no
  // time. retold() is told of the blocks.
  RequestNumber begin_hint(NextUse next_use, std::int64_t unix_ms);
  void retold(BlockHistory& block, RequestNumber hint) { policy_->retold(block, hint); }
  // Its last copy goes.
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

  // By the highest bits of a hash: what was asked for last, and what is expected to be stored.
  struct Seen {
    std::uint64_t key_hash = 0;
    RequestNumber request = 0;
    std::uint32_t blocks = 0;
  };
  static constexpr int kSeenBits = 8;  // as many frontends and more
  using SeenTable = std::array<Seen, std::size_t{1} << kSeenBits>;
  static Seen& place(SeenTable& table, std::uint64_t key_hash) {
    return table[key_hash >> (64 - kSeenBits)];
  }

  std::unique_ptr<EvictionPolicy> policy_;
  GhostTable ghosts_;
  SeenTable asked_;
  SeenTable expected_;
  RequestNumber last_ = 0;
  RequestNumber restoring_ = 0;  // 0: none yet
};

}  // namespace cairn
