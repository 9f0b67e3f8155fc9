#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

// The blocks that tests store: a number names a key and its bytes. Small, but with every dimension
// above one, so that a wrong order of any two shows.
namespace cairn::e2e {

using nlohmann::json;

inline constexpr std::size_t kLayers = 3;
inline constexpr std::size_t kOuter = 2;
inline constexpr std::size_t kPageSize = 4;
inline constexpr std::size_t kInner = 8;
inline constexpr std::size_t kDtypeBytes = 2;
inline constexpr std::size_t kRegionBytes = kPageSize * kInner * kDtypeBytes;
inline constexpr std::size_t kBlockBytes = kLayers * kOuter * kRegionBytes;

inline constexpr const char* kTierNames[] = {"device", "pinned", "disk"};

// A cache of those blocks; a tier of 0 blocks is left out.
struct Shape {
  std::uint32_t device = 0;
  std::uint32_t pinned = 0;
  std::uint32_t disk = 0;
  std::string offload = "on_evict";
  // Of all tiers: "fully_contiguous", "first" or "second" (both layer_separate).
  std::string layout = "fully_contiguous";
};
json cache_body(const Shape& shape);
// A tier's member of that body.
json tier_body(std::uint32_t num_blocks, const std::string& layout);

std::string key(int n);    // hex
std::string block(int n);  // kBlockBytes in canonical order
// The bytes of (layer, outer) of a block.
std::string region(int n, std::size_t layer, std::size_t outer);
// `count` of them, in order.
std::vector<std::string> keys(int first, int count);
std::string blocks(int first, int count);
// The body of a batch write.
std::string write_body(const json& header, std::string_view blocks);

std::string from_hex(const std::string& hex);
// The keys of a packed match.
std::string packed(const std::vector<std::string>& hex_keys);

}  // namespace cairn::e2e
