#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

// The key of each block, and the bytes that belong to a key.
namespace cairn::replay {

inline constexpr std::size_t kKeyBytes = 32;
using BlockKey = std::array<std::byte, kKeyBytes>;

// Keys of one workload: different for different ids and (except for a collision of 64-bit hashes)
// different from those of a workload with another name.
class KeyMaker {
 public:
  explicit KeyMaker(std::string_view workload_name);
  BlockKey key_of(std::uint64_t hash_id) const;

 private:
  std::uint64_t workload_;
};

struct Mismatch {
  std::uint64_t wrong_bytes = 0;
  std::size_t first_offset_bytes = 0;
  // All of the wrong block is the block of another key: it was mixed up, not damaged.
  bool other_keys_block = false;
};

// The bytes that belong to a key: numbers in bf16 as models compute them, which a codec shrinks.
// Each word differs between the places of a block and between blocks, but for one pair in billions.
// So every word shows a swapped, shifted or stale block. Several times faster than a socket.
class BlockPattern {
 public:
  explicit BlockPattern(std::span<const std::byte> key);

  void fill(std::span<std::byte> block) const;
  Mismatch compare(std::span<const std::byte> block) const;

 private:
  std::uint64_t seed_;
};

}  // namespace cairn::replay
