#include "blockmgr/eviction/block_uses.hpp"

#include <algorithm>
#include <utility>

namespace cairn {
namespace {

// A repeated match is the same request if fewer requests than this have begun since.
constexpr RequestNumber kSameRequest = 16;
// A block belongs to the request that last used its parent if fewer requests than this have begun
// since. At most this many are computed at a time.
constexpr RequestNumber kRequestsAtOnce = 256;
// Hints of a kind count as one request if no other request comes between them, so that a client
// that sends many does not make the policy forget what it knows of requests. Within this time,
// because the policy reads their ages from it.
constexpr std::int64_t kHintsTogetherMs = 1'000;
// It does not pay to remember more evicted blocks than this: 8 times the cache's blocks, and more
// for small caches.
constexpr std::uint64_t kGhostsABlock = 8;
constexpr std::uint64_t kMinGhosts = 65'536;

std::uint32_t ghosts_for(const BlockUses::Options& options) {
  const std::uint64_t wanted = std::max(kMinGhosts, kGhostsABlock * options.capacity_blocks);
  return static_cast<std::uint32_t>(
      std::min(wanted, options.ghost_bytes / GhostTable::kSetBytes * GhostTable::kPlaces));
}

}  // namespace

BlockUses::BlockUses(const Options& options)
    : policy_(make_eviction_policy(
          {.eviction = options.eviction, .capacity_blocks = options.capacity_blocks})),
      ghosts_(ghosts_for(options)) {}

RequestNumber BlockUses::begin_match(const Match& match) {
  Seen& seen = place(asked_, match.last_key_hash);
  const bool again = seen.key_hash == match.last_key_hash && seen.blocks == match.blocks &&
                     last_ - seen.request < kSameRequest;
  if (!again) {
    last_used_ = last_ = policy_->begin({.blocks = match.blocks, .unix_ms = match.unix_ms});
    seen = {match.last_key_hash, last_, match.blocks};
  }
  return seen.request;
}

RequestNumber BlockUses::begin_hint(NextUse next_use, std::int64_t unix_ms) {
  Hints& hints = hints_[static_cast<std::size_t>(next_use)];
  const bool goes_on = hints.of_used == last_used_ && unix_ms - hints.unix_ms < kHintsTogetherMs;
  if (!goes_on || hints.request == 0) {
    last_ = policy_->begin({.blocks = 0, .unix_ms = unix_ms});
    policy_->ended(last_, {.next_use = next_use});
    hints = {last_, last_used_, unix_ms};
  }
  return hints.request;
}

void BlockUses::stored(BlockHistory& block, const Stored& stored) {
  block = ghosts_.recall(stored.key_hash);
  RequestNumber request = 0;
  std::uint32_t begun_since = kRequestsAtOnce;
  const auto consider = [&](RequestNumber candidate) {
    if (last_ - candidate >= begun_since) return;
    begun_since = last_ - candidate;
    request = candidate;
  };
  Seen& expected = place(expected_, stored.key_hash);
  if (expected.key_hash == stored.key_hash && expected.blocks > 0) {
    consider(std::exchange(expected, {}).request);
  }
  if (stored.parent != nullptr && stored.parent->is_known()) consider(stored.parent->request);
  if (begun_since == kRequestsAtOnce) {
    request = last_used_ = last_ = policy_->begin({.blocks = 0, .unix_ms = stored.unix_ms});
  }
  use(block, request, stored.is_hub);
}

void BlockUses::restored(BlockHistory& block, const Restored& restored) {
  if (policy_->take_kept(block, restored.kept, restored.hinted)) {
    last_ = block.request;
    return;
  }
  // They are no older than the blocks before them, so their request is a new one.
  if (restoring_ == 0 || restoring_ != last_) restoring_ = last_ = policy_->begin({});
  use(block, restoring_, false);
}

}  // namespace cairn
