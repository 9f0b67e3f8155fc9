#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

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

}  // namespace cairn::replay
