#include "replay/target_cache.hpp"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/hex.hpp"
#include "base/random.hpp"
#include "client/http_wire.hpp"

namespace cairn::replay {
namespace {

using client::Answer;
using client::ClientError;
using client::Tier;
using nlohmann::json;

std::string fresh_name() {
  std::array<std::byte, 6> bytes{};
  RandomBytes().fill(bytes);
  return "replay-" + to_hex(bytes);
}

void set_codec(json& tiers, const CacheShape& shape) {
  if (shape.disk_blocks > 0) tiers["disk"]["codec"] = shape.disk_codec;
}

json body_of(const CacheShape& shape) {
  const std::uint64_t unit =
      shape.num_layers * shape.outer_dim * shape.page_size * shape.dtype_width_bytes;
  json tiers = json::object();
  if (shape.device_blocks > 0) {
    tiers["device"] = {{"num_blocks", shape.device_blocks}, {"layout", shape.device_layout}};
    if (shape.device_layout == "layer_separate") tiers["device"]["block_dim"] = "first";
  }
  const auto add = [&tiers](const char* tier, std::uint64_t num_blocks) {
    if (num_blocks == 0) return;
    tiers[tier] = {{"num_blocks", num_blocks}, {"layout", "fully_contiguous"}};
  };
  add("pinned", shape.pinned_blocks);
  add("disk", shape.disk_blocks);
  set_codec(tiers, shape);
  json body = {{"layout",
                {{"num_layers", shape.num_layers},
                 {"outer_dim", shape.outer_dim},
                 {"page_size", shape.page_size},
                 {"inner_dim", shape.block_bytes / unit},
                 {"dtype_width_bytes", shape.dtype_width_bytes},
                 {"alignment", shape.alignment}}},
               {"tiers", std::move(tiers)},
               {"offload", shape.offload}};
  if (!shape.eviction.empty()) body["eviction"] = shape.eviction;
  return body;
}

// A block of `kv_model` takes no more than its bytes, and a tier what its number of blocks would
// take if each layer were full.
json body_of(const CacheShape& shape, const KvModel& kv_model) {
  json body = kv_model.body();
  for (json& group : body["kv_groups"]) group["layout"]["alignment"] = 1;
  const std::uint64_t block_bytes = kv_model.as_if_full_bytes();
  body["tiers"] = json::object();
  const auto add = [&](const char* tier, std::uint64_t num_blocks) {
    if (num_blocks > 0) body["tiers"][tier] = {{"size_bytes", num_blocks * block_bytes}};
  };
  add("device", shape.device_blocks);
  add("pinned", shape.pinned_blocks);
  add("disk", shape.disk_blocks);
  set_codec(body["tiers"], shape);
  body["offload"] = shape.offload;
  if (!shape.eviction.empty()) body["eviction"] = shape.eviction;
  return body;
}

// Whether the cache has these KV groups.
bool has_groups(const json& description, const KvModel& kv_model) {
  const json wanted = kv_model.body();
  if (description.value("block_tokens", json()) != wanted.at("block_tokens")) return false;
  json groups = description.value("kv_groups", json::array());
  for (json& group : groups) {
    if (group.is_object() && group.contains("layout")) group["layout"].erase("alignment");
  }
  return groups == wanted.at("kv_groups");
}

Answer<TargetCache> target_from(const std::string& name, const json& description) {
  return client::guarded([&] {
    TargetCache target;
    target.name = name;
    target.block_bytes = description.at("block_bytes").get<std::size_t>();
    target.layout = description.value("layout", json());
    if (target.layout.is_object()) target.layout.erase("alignment");
    const json& tiers = description.at("tiers");
    for (const Tier tier : client::kTiers) {
      const auto found = tiers.find(client::to_string(tier));
      if (found == tiers.end()) continue;
      target.store_tier = tier;
      target.store_tier_blocks = found->value("num_blocks", std::uint64_t{0});
      break;
    }
    return target;
  });
}

Answer<TargetCache> open_any(client::CacheClient& client, const ReplayOptions& options) {
  const std::string name = options.cache.empty() ? fresh_name() : options.cache;
  if (!options.cache.empty()) {
    auto present = client.get_cache(name);
    if (present) {
      if (options.kv_model && !has_groups(*present, *options.kv_model)) {
        return ClientError{409, "cache_exists", "cache '" + name + "' has other KV groups"};
      }
      return target_from(name, *present);
    }
    if (present.error().status != 404) return std::move(present).error();
  }
  auto made = client.put_cache(
      name, options.kv_model ? body_of(options.shape, *options.kv_model) : body_of(options.shape));
  if (!made) return std::move(made).error();
  auto target = target_from(name, made->description);
  if (target) target->own = made->created;
  return target;
}

}  // namespace

Answer<TargetCache> open_target(client::CacheClient& client, const ReplayOptions& options) {
  auto target = open_any(client, options);
  if (target) target->kv_model = options.kv_model;
  return target;
}

Answer<MatchCounts> match_counts(client::CacheClient& client, const std::string& cache) {
  auto metrics = client.metrics();
  if (!metrics) return std::move(metrics).error();
  const auto count = [&](std::string_view result) {
    std::string series = "cairn_match_blocks_total{cache=\"";
    series.append(cache).append("\",result=\"").append(result).append("\"}");
    return static_cast<std::uint64_t>(metrics->value(series));
  };
  MatchCounts counts;
  for (const Tier tier : client::kTiers) {
    counts.hits[static_cast<std::size_t>(tier)] = count(client::to_string(tier));
  }
  counts.misses = count("miss");
  return counts;
}

Answer<PrefetchCounts> prefetch_counts(client::CacheClient& client, const std::string& cache) {
  auto metrics = client.metrics();
  if (!metrics) return std::move(metrics).error();
  PrefetchCounts counts;
  for (const std::string result : {"used", "late", "wasted", "missing"}) {
    const std::string series =
        "cairn_prefetch_blocks_total{cache=\"" + cache + "\",result=\"" + result + "\"}";
    counts[result] = static_cast<std::uint64_t>(metrics->value(series));
  }
  return counts;
}

MatchCounts operator-(const MatchCounts& after, const MatchCounts& before) {
  MatchCounts moved;
  for (std::size_t i = 0; i < moved.hits.size(); ++i)
    moved.hits[i] = after.hits[i] - before.hits[i];
  moved.misses = after.misses - before.misses;
  return moved;
}

PrefetchCounts grown(const PrefetchCounts& before, PrefetchCounts after) {
  for (auto& [result, count] : after) {
    const auto had = before.find(result);
    if (had != before.end()) count -= had->second;
  }
  return after;
}

}  // namespace cairn::replay
