#pragma once

#include <cstdint>
#include <optional>

#include "blockmgr/eviction/reuse_hint.hpp"

namespace cairn {

// Requests are numbered as they begin. The numbers wrap: only their distance counts.
using RequestNumber = std::uint32_t;

// What is known of a block's uses. It lies beside the block while there is a copy of it, and in a
// GhostTable after that.
struct BlockHistory {
  RequestNumber request = 0;   // the last one that used it
  std::uint16_t listed_s = 0;  // the time when it was listed, with lru
  std::uint8_t list : 6 = 0;   // that it is in while it may be evicted
  bool is_told : 1 = false;    // who used it last has said what to expect of it
  bool unused : 1 = false;     // each bit is one that is compared
  // How often it was used, or the conversation that it ends has come back: the larger. 0: nothing
  // is known of it; kMostUses stands for all that are more.
  std::uint8_t uses : 4 = 0;
  bool is_hub : 1 = false;   // many blocks follow it
  bool is_last : 1 = false;  // of what its request asked for
  bool is_tail : 1 = false;  // the last, and not filled with tokens
  bool counted : 1 = false;  // its request counts it among those that wait for another use

  bool is_known() const { return uses > 0; }
};
static_assert(sizeof(BlockHistory) == 8, "a block's metadata is bounded: see BlockStore");
inline constexpr std::uint8_t kMostUses = 5;
// So many children make a block a hub: the end of a prompt that many share.
inline constexpr std::uint32_t kHubChildren = 8;

// Whether a sample of one block in so many, a power of two, has this one.
inline bool is_sampled(std::uint64_t key_hash, std::uint32_t one_in) {
  return (key_hash & (one_in - 1)) == 0;
}

// Of a request's blocks only some are told to a policy, as in a model of a larger cache.
struct RequestSample {
  std::uint32_t told = 0;     // of its blocks
  std::uint32_t one_in = 1;   // each of them stands for so many
  std::uint32_t skipped = 0;  // blocks of requests before it of which none was told
  bool has_last = false;      // the last one told is the last that it asks for
};

// A request that begins.
struct RequestStart {
  std::uint32_t blocks = 0;  // that it asks for; 0: not known, and no time passes
  std::int64_t unix_ms = 0;
  std::optional<RequestSample> sample = {};  // nothing: all of them are told
};

// What is known of it when it has ended.
struct RequestEnd {
  std::optional<std::uint32_t> output_tokens = {};
  // Blocks that its prompt fills with tokens: where it asked for more, the last one is a part.
  std::optional<std::uint32_t> full_blocks = {};
  NextUse next_use = NextUse::unknown;  // of its blocks, as its user expects
  // Of which nothing was known before, where somebody has seen more of its blocks than are told.
  std::optional<std::uint32_t> unknown_blocks = {};
};

}  // namespace cairn
