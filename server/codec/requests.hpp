#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blockmgr/cache.hpp"
#include "server/codec/fields.hpp"
#include "server/codec/key_list.hpp"

// The bodies of the requests that a serving frontend sends for every prompt, whatever they were
// written in.
namespace cairn {

// The longest wait that a request may ask for: below what proxies commonly cut.
inline constexpr std::uint32_t kMaxWaitMs = 60'000;

inline constexpr NumberBounds kPriorities{0, 100};

struct MatchBody {
  KeyBuffer keys;
  // Instead of keys; turned into keys by the cache's page size.
  bool has_tokens = false;
  std::vector<std::uint32_t> tokens;
  std::optional<std::string> salt;
  std::optional<std::uint32_t> lease_ms;
  std::optional<Tier> onboard;
  std::uint32_t wait_ms = 0;

  void clear() {
    keys.clear();
    has_tokens = false;
    clear_kept(tokens);
    salt.reset();
    lease_ms.reset();
    onboard.reset();
    wait_ms = 0;
  }
};

// What the lists of a match may hold. A reader stops there, before it keeps any more.
struct MatchLimits {
  std::size_t max_keys = 0;
  std::size_t max_tokens = 0;

  // A last page that is not full has no key, so its tokens are over and above.
  static MatchLimits of(std::size_t max_blocks, std::uint64_t page_size) {
    const std::uint64_t most = UINT64_MAX / (max_blocks + 1);
    return {.max_keys = max_blocks,
            .max_tokens = page_size > most ? UINT64_MAX : (max_blocks + 1) * page_size - 1};
  }
};

struct AllocateBody {
  std::uint32_t count = 0;
  std::optional<Tier> tier;  // nothing: the cache's highest
  std::optional<std::uint32_t> lease_ms;
  std::uint8_t priority = 50;
};

struct CommitBody {
  LeaseId lease;
  std::vector<CommitBlock> blocks;
};

struct ReleaseBody {
  std::vector<BlockHandle> blocks;  // at least one: an empty list would mean all to the cache
};

struct RenewBody {
  std::optional<std::uint32_t> lease_ms;
};

// What both formats check alike. A match names its blocks by keys or by tokens, never both.
Result<> check_match_sources(bool has_keys, const MatchBody& body);
Result<> check_release(const ReleaseBody& body);
// out_of_range: a list goes on behind the last element that it may have.
Error too_many(std::string_view list, std::size_t most);
// malformed unless the text is a lease's.
Result<> read_lease(std::string_view text, LeaseId& out);

}  // namespace cairn
