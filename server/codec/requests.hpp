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

// The bodies of the requests that a serving frontend sends for every prompt.
namespace cairn {

// The longest wait that a request may ask for: below what proxies commonly cut.
inline constexpr std::uint32_t kMaxWaitMs = 60'000;

inline constexpr NumberBounds kPriorities{0, 100};

// What a write does with a key that is there already.
inline constexpr std::array<std::string_view, 2> kIfExistsWords = {"duplicate", "error"};

struct MatchBody {
  KeyBuffer keys;
  // Instead of keys; turned into keys by the cache's page size.
  bool has_tokens = false;
  std::vector<std::uint32_t> tokens;
  std::optional<std::string> salt;
  std::optional<std::uint32_t> lease_ms;
  std::optional<Tier> onboard;
  std::uint32_t wait_ms = 0;
  RequestHint hint;
  bool shared = true;  // whether the shared tier is asked for what is not here

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
  bool release = false;  // the lease ends with it
  RequestHint hint;
};

struct ReleaseBody {
  std::vector<BlockHandle> blocks;  // empty: all
  std::optional<LeaseId> to_lease;
  std::optional<std::uint32_t> input_tokens;
  std::optional<std::uint32_t> output_tokens;
  RequestHint hint;
};

struct RenewBody {
  std::optional<std::uint32_t> lease_ms;
};

}  // namespace cairn
