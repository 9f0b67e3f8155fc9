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
    tokens.clear();
    salt.reset();
    lease_ms.reset();
    onboard.reset();
    wait_ms = 0;
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
// malformed unless the text is a lease's.
Result<> read_lease(std::string_view text, LeaseId& out);

}  // namespace cairn
