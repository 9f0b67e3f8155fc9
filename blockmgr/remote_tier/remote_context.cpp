#include "blockmgr/remote_tier/remote_context.hpp"

#include <algorithm>
#include <utility>

#include "base/hex.hpp"
#include "blockmgr/core/cache_core.hpp"
#include "transport/store/near_far_store.hpp"

namespace cairn {
namespace {

std::vector<std::uint64_t> fingerprints_of(const CacheConfig& config) {
  std::vector<std::uint64_t> fingerprints;
  for (std::size_t group = 0; group < config.kv_group_count(); ++group) {
    fingerprints.push_back(fingerprint_of(config, static_cast<KvGroupNumber>(group)));
  }
  return fingerprints;
}

// Values and holders have different prefixes, because their data differs.
std::vector<std::string> prefixes_of(const RemoteTierConfig& config, const std::string& name_space,
                                     const std::vector<std::uint64_t>& fingerprints) {
  const bool is_of_values = config.placement == RemoteTierConfig::Placement::values;
  std::vector<std::string> prefixes;
  for (const std::uint64_t& fingerprint : fingerprints) {
    prefixes.push_back((is_of_values ? "cairn:" : "cairn-holders:") + name_space + ":" +
                       to_hex(std::as_bytes(std::span(&fingerprint, 1))) + ":");
  }
  return prefixes;
}

// Blocks that wait for the store must not take a tier from the engines: an eighth of the one that
// they are read from, or copied to.
constexpr std::uint32_t kShareOfTier = 8;
// A Redis is kept busy by this many. Fewer would make a fetch wait for each round trip.
constexpr std::uint32_t kMinStoring = 4;
constexpr std::uint32_t kMinStep = 16;

std::uint32_t share_of(const Cache& cache) {
  return cache.config().tiers[index_of(default_tier_of(cache))]->num_blocks / kShareOfTier;
}

// Encoded blocks that wait for the store take memory beside the tiers.
constexpr std::uint64_t kMaxEncodedBytes = 256ull << 20;

std::uint32_t most_writes(const Cache& cache, const RemoteContext::Beyond& beyond) {
  const std::uint32_t most = beyond.store.habits().max_writes;
  if (beyond.config.codec == Codec::none) return most;
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(most, kMaxEncodedBytes / cache.block_bytes()));
}

}  // namespace

Tier default_tier_of(const Cache& cache) {
  return cache.layout(Tier::pinned) != nullptr ? Tier::pinned : cache.highest_tier();
}

const std::string& shared_namespace(const CacheConfig& config) {
  return config.shared->name_space.empty() ? config.name : config.shared->name_space;
}

RemoteContext::RemoteContext(std::shared_ptr<Cache> of, const Beyond& beyond,
                             const RemoteEvents& remote_events)
    : cache(std::move(of)),
      config(beyond.config),
      both(beyond.far == nullptr ? nullptr : make_near_far_store(beyond.store, *beyond.far)),
      store(both ? *both : beyond.store),
      peers(beyond.peers),
      own_address(beyond.own_address),
      under_way(beyond.under_way),
      executor(beyond.executor),
      name_space(shared_namespace(cache->config())),
      fingerprints(fingerprints_of(cache->config())),
      name_prefixes(prefixes_of(config, name_space, fingerprints)),
      max_storing(std::clamp(share_of(*cache), kMinStoring,
                             std::max(kMinStoring, most_writes(*cache, beyond)))),
      step_bytes(store.habits().step_bytes),
      step_blocks(std::min<std::uint64_t>(store.habits().step_values,
                                          std::max(kMinStep, share_of(*cache)))),
      events(remote_events),
      codec({.codec = config.codec, .clock = cache->core()->services->clock}) {}

std::string RemoteContext::name_of(KeyView key) const {
  std::string name = name_prefixes[key.kv_group];
  append_hex(name, key.bytes());
  return name;
}

}  // namespace cairn
