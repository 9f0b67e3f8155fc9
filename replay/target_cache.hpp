#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/cache_client.hpp"
#include "replay/options.hpp"

namespace cairn::replay {

// The cache that a replay runs against.
struct TargetCache {
  std::string name;
  std::size_t block_bytes = 0;
  nlohmann::json layout = {};  // its shape, without alignment; null with KV groups
  client::Tier store_tier = client::Tier::device;  // the highest it has
  std::uint64_t store_tier_blocks = 0;             // its capacity
  bool own = false;                      // made by this replay, and used by no other client
  std::optional<KvModel> kv_model = {};  // set: its KV groups
};

// Uses the cache in `options`, or creates it (or one with a new name) in their shape.
client::Answer<TargetCache> open_target(client::CacheClient& client, const ReplayOptions& options);

// The server's `cairn_match_blocks_total` of one cache.
struct MatchCounts {
  std::array<std::uint64_t, client::kTiers.size()> hits{};
  std::uint64_t misses = 0;
  std::uint64_t total() const { return hits[0] + hits[1] + hits[2] + misses; }
  bool operator==(const MatchCounts&) const = default;
};
client::Answer<MatchCounts> match_counts(client::CacheClient& client, const std::string& cache);
// The server's `cairn_prefetch_blocks_total` of one cache, by result.
using PrefetchCounts = std::map<std::string, std::uint64_t>;
client::Answer<PrefetchCounts> prefetch_counts(client::CacheClient& client,
                                               const std::string& cache);
// How much each has grown.
PrefetchCounts grown(const PrefetchCounts& before, PrefetchCounts after);
MatchCounts operator-(const MatchCounts& after, const MatchCounts& before);

}  // namespace cairn::replay
