#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "blockmgr/cache/cache.hpp"
#include "server/codec/fields.hpp"
#include "server/codec/key_list.hpp"

// The bodies of requests that a serving frontend sends for every prompt.
namespace cairn {

// The longest wait that a request may ask for. It is below the usual timeout of proxies.
inline constexpr std::uint32_t kMaxWaitMs = 60'000;

inline constexpr NumberBounds kPriorities{0, 100};

// A write of an existing key returns duplicate, or an error.
inline constexpr std::array<std::string_view, 2> kIfExistsWords = {"duplicate", "error"};

struct MatchBody {
  KeyBuffer keys;
  // Given instead of keys. The cache's page size turns them into keys.
  bool has_tokens = false;
  std::vector<std::uint32_t> tokens;
  std::optional<std::string> salt;
  std::optional<std::uint32_t> lease_ms;
  std::optional<Tier> onboard;
  std::uint32_t wait_ms = 0;
  RequestHint hint;
  bool shared = true;      // also ask the shared tier for missing blocks
  std::uint32_t have = 0;  // leading keys whose full blocks the caller has
  // Matches the keys in this KV group alone, each as one block.
  std::optional<std::string> kv_group;

  void clear() {
    keys.clear();
    has_tokens = false;
    clear_kept(tokens);
    salt.reset();
    lease_ms.reset();
    onboard.reset();
    wait_ms = 0;
    hint.reuse = {};
    hint.session.clear();
    shared = true;
    have = 0;
    kv_group.reset();
  }
};

// Limits of a match's lists. A reader stops at the limit, before it stores more.
struct MatchLimits {
  std::size_t max_keys = 0;
  std::size_t max_tokens = 0;

  // A partial last page has no key, so its tokens are allowed in addition.
  static MatchLimits of(std::size_t max_blocks, std::uint64_t page_size) {
    const std::uint64_t most = UINT64_MAX / (max_blocks + 1);
    return {.max_keys = max_blocks,
            .max_tokens = page_size > most ? UINT64_MAX : (max_blocks + 1) * page_size - 1};
  }
};

// Keys of one question about where blocks are. A router asks about 100,000 at once: the prompts of
// some hundred waiting requests. They take 13 MB as JSON with keys of 64 bytes, within the limit of
// a body, and some 5 ms.
inline constexpr std::size_t kMaxContainsKeys = 131'072;

struct ContainsBody {
  KeyBuffer keys;
  bool shared = false;                  // also ask the shared tier
  std::optional<std::string> kv_group;  // nullopt: see Cache::tiers_of()

  void clear() {
    keys.clear();
    shared = false;
    kv_group.reset();
  }
};

struct AllocateBody {
  std::uint32_t count = 0;
  std::vector<std::uint32_t> group_counts = {};  // by KV group; empty: the group `default`
  std::optional<Tier> tier;                      // nullopt: the cache's highest tier
  std::optional<std::uint32_t> lease_ms;
  std::uint8_t priority = 50;
};

struct CommitBody {
  LeaseId lease;
  std::vector<CommitBlock> blocks;
  bool release = false;  // end the lease after the commit
  RequestHint hint;
  std::optional<std::uint32_t> pin_ms;  // cache_control: pins the blocks for this time
};

struct ReleaseBody {
  std::vector<BlockHandle> blocks;  // empty: all
  std::optional<LeaseId> to_lease;
  std::optional<std::uint32_t> input_tokens;
  std::optional<std::uint32_t> output_tokens;
  RequestHint hint;
  std::optional<std::uint32_t> pin_ms;  // as in CommitBody
};

struct RenewBody {
  std::optional<std::uint32_t> lease_ms;
};

}  // namespace cairn
