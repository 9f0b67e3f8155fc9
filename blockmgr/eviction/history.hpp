#pragma once

#include <cstdint>
#include <optional>

#include "blockmgr/eviction/reuse_hint.hpp"

namespace cairn {

// Requests are numbered in the order in which they begin. The numbers wrap: only their distance
// counts.
using RequestNumber = std::uint32_t;

// A block's past uses. Stored with the block while it has a copy, and in a GhostTable after that.
struct BlockHistory {
  RequestNumber request = 0;   // the last request that used it
  std::uint16_t listed_s = 0;  // when it was listed; only with lru
  std::uint8_t list : 6 = 0;   // that it is in while it may be evicted
  bool is_hinted : 1 = false;  // its last user gave a hint
  bool unused : 1 = false;     // every bit takes part in comparisons
  // How often it was used, or how often the conversation that it ends has come back: the larger. 0:
  // unknown; kMostUses: that many or more.
  std::uint8_t uses : 4 = 0;
  bool is_hub : 1 = false;   // many blocks follow it
  bool is_last : 1 = false;  // of the blocks that its request asked for
  bool is_tail : 1 = false;  // the last, and not filled with tokens
  bool counted : 1 = false;  // its request counts it as waiting for another use

  bool is_known() const { return uses > 0; }
};
static_assert(sizeof(BlockHistory) == 8, "a block's metadata is bounded: see BlockStore");
inline constexpr std::uint8_t kMostUses = 5;
// A block with this many children is a hub: the end of a prompt that many requests share.
inline constexpr std::uint32_t kHubChildren = 8;

// Whether a sample of one block in `one_in`, a power of two, has this block.
inline bool is_sampled(std::uint64_t key_hash, std::uint32_t one_in) {
  return (key_hash & (one_in - 1)) == 0;
}

// A request of which a policy sees only some blocks, as in a model of a larger cache.
struct RequestSample {
  std::uint32_t seen = 0;     // its blocks that the policy sees
  std::uint32_t one_in = 1;   // each of them stands for this many
  std::uint32_t skipped = 0;  // blocks of earlier requests of which it saw none
  bool has_last = false;      // the last block seen is the last one asked for
};

// The beginning of a request.
struct RequestStart {
  std::uint32_t blocks = 0;  // that it asks for; 0: unknown, and no time passes
  std::int64_t unix_ms = 0;
  std::optional<RequestSample> sample = {};  // nullopt: the policy sees all blocks
};

// The data known at a request's end.
struct RequestEnd {
  std::optional<std::uint32_t> output_tokens = {};
  // Blocks that its prompt fills with tokens. If it asked for more, the last one is partial.
  std::optional<std::uint32_t> full_blocks = {};
  NextUse next_use = NextUse::unknown;  // its user's hint for its blocks
  // Blocks without a history, if the caller has seen more of its blocks than the policy.
  std::optional<std::uint32_t> unknown_blocks = {};
};

}  // namespace cairn
