#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/assert.hpp"

// The nouns of the HTTP contract as plain values.
namespace cairn::client {

enum class Tier : std::uint8_t { device, pinned, disk };
inline constexpr std::array<Tier, 3> kTiers = {Tier::device, Tier::pinned, Tier::disk};

std::string_view to_string(Tier tier);
std::optional<Tier> tier_from(std::string_view name);

// Keys of equal length, end to end. Borrows the bytes.
class KeyList {
 public:
  // REQUIRES: bytes.size() is a multiple of key_bytes.
  KeyList(std::span<const std::byte> bytes, std::size_t key_bytes)
      : bytes_(bytes), key_bytes_(key_bytes) {
    CAIRN_ASSERT(key_bytes > 0 && bytes.size() % key_bytes == 0, "a key would be cut");
  }

  std::size_t size() const { return bytes_.size() / key_bytes_; }
  std::size_t key_bytes() const { return key_bytes_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  std::span<const std::byte> operator[](std::size_t index) const {
    return bytes_.subspan(index * key_bytes_, key_bytes_);
  }
  KeyList part(std::size_t first, std::size_t count) const {
    return {bytes_.subspan(first * key_bytes_, count * key_bytes_), key_bytes_};
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t key_bytes_;
};

struct BlockHandle {
  Tier tier = Tier::device;
  std::uint64_t slot = 0;
  std::uint64_t generation = 0;
  std::string kv_group = {};  // empty in a cache of one group
  bool operator==(const BlockHandle&) const = default;
};

// The longest stored prefix and the lease that pins it (empty if none was asked for).
struct Match {
  std::string lease;
  std::int64_t expires_at_ms = 0;
  std::vector<BlockHandle> blocks;  // the handles of the first blocks.size() keys
};

// The longest prefix that all KV groups can serve, and the blocks that it needs.
struct GroupMatch {
  std::string lease;  // empty if none was asked for
  std::int64_t expires_at_ms = 0;
  std::size_t matched = 0;       // keys
  std::size_t full_matched = 0;  // keys that the full groups alone can serve
  struct Block {
    std::string key;  // in hex
    BlockHandle handle;
  };
  std::vector<Block> blocks;
};

struct AllocateRequest {
  std::size_t count = 0;
  std::vector<std::pair<std::string, std::size_t>> group_counts = {};  // instead, by KV group
  Tier tier = Tier::device;
  std::uint64_t lease_ms = 30'000;
};

struct Allocation {
  std::string lease;
  std::int64_t expires_at_ms = 0;
  std::vector<BlockHandle> blocks;
};

// A written block to store under `key`. `parent` may be empty.
struct CommitBlock {
  BlockHandle handle;
  std::span<const std::byte> key;
  std::span<const std::byte> parent;
};

// Whether a block was stored, or its key was stored before.
enum class StoreStatus : std::uint8_t { committed, duplicate };

struct Transfer {
  std::string id;
  std::string state;
  std::uint64_t blocks_done = 0;
  std::uint64_t blocks_total = 0;
  std::uint64_t bytes = 0;
  bool ended() const { return state == "done" || state == "failed" || state == "cancelled"; }
};

}  // namespace cairn::client
