#include "blockmgr/index/config_check.hpp"

#include <algorithm>
#include <cctype>
#include <string>

#include "blockmgr/index/slot_ref.hpp"

namespace cairn {
namespace {

constexpr std::size_t kMaxNameBytes = 64;
constexpr std::uint64_t kMaxRemoteTtlMs = 366ull * 24 * 3'600'000;  // one year

Error out_of_range(std::string detail) { return {ErrorCode::out_of_range, std::move(detail)}; }

Result<> check_name(std::string_view what, const std::string& name) {
  const bool fine = !name.empty() && name.size() <= kMaxNameBytes && name != "." && name != ".." &&
                    std::all_of(name.begin(), name.end(), [](unsigned char c) {
                      return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
                    });
  if (fine) return {};
  return out_of_range(std::string(what) +
                      " is 1 to 64 letters, digits, '.', '_' or '-', and not . or ..");
}

// With less, the server would re-register every block all the time.
constexpr std::uint64_t kMinHolderTtlMs = 1'000;

Result<> check_holders(const RemoteTierConfig& shared, const BlockManagerOptions& options) {
  if (!options.is_advertised) {
    return Error{ErrorCode::impossible,
                 "shared.placement is holders, but other servers do not know this server's URL: "
                 "set shared.advertise"};
  }
  if (shared.write == RemoteTierConfig::Write::on_evict) {
    return Error{ErrorCode::impossible,
                 "shared.write is on_evict, which requires placement values: a server cannot serve "
                 "a block that it has evicted"};
  }
  if (shared.ttl_ms > 0 && shared.ttl_ms < kMinHolderTtlMs) {
    return out_of_range("shared.ttl_ms is " + std::to_string(shared.ttl_ms) +
                        "; with placement holders it must be 0 or at least " +
                        std::to_string(kMinHolderTtlMs));
  }
  return {};
}

Result<> check_remote_tier(const RemoteTierConfig& shared, const BlockManagerOptions& options) {
  if (!options.has_remote_store) {
    return Error{ErrorCode::impossible,
                 "shared is given, but this server has no shared store: set shared.url (--shared)"};
  }
  if (shared.placement == RemoteTierConfig::Placement::holders)
    CAIRN_TRY(check_holders(shared, options));
  if (!shared.name_space.empty()) CAIRN_TRY(check_name("shared.namespace", shared.name_space));
  if (shared.ttl_ms > kMaxRemoteTtlMs) {
    return out_of_range("shared.ttl_ms is " + std::to_string(shared.ttl_ms) + ", not 0 to " +
                        std::to_string(kMaxRemoteTtlMs));
  }
  return {};
}

}  // namespace

LayoutConfig tier_shape(const CacheConfig& config, Tier tier) {
  LayoutConfig shape = config.shape;
  shape.num_blocks = config.tiers[index_of(tier)]->num_blocks;
  return shape;
}

std::uint32_t different_blocks(const CacheConfig& config) {
  std::uint32_t sum = 0;
  std::uint32_t most = 0;
  for (const auto& tier : config.tiers) {
    if (!tier) continue;
    sum += tier->num_blocks;
    most = std::max(most, tier->num_blocks);
  }
  return config.offload == OffloadMode::on_commit ? most : sum;
}

Result<> check_config(const CacheConfig& config, const BlockManagerOptions& options) {
  CAIRN_TRY(check_name("a cache's name", config.name));
  if (config.shared) CAIRN_TRY(check_remote_tier(*config.shared, options));
  if (config.default_lease_ms < 1) return out_of_range("default_lease_ms is 0, not 1 or more");
  std::uint64_t slots = 0;
  bool any = false;
  for (Tier tier : kTiers) {
    if (!config.tiers[index_of(tier)]) continue;
    any = true;
    slots += config.tiers[index_of(tier)]->num_blocks;
    CAIRN_TRY(validate(tier_shape(config, tier)));
  }
  if (!any) return Error{ErrorCode::impossible_shape, "a cache has at least one tier"};
  if (slots > kMaxSlots) {
    return Error{ErrorCode::impossible_shape, "the tiers have " + std::to_string(slots) +
                                                  " blocks together, not up to " +
                                                  std::to_string(kMaxSlots)};
  }
  return {};
}

const PressureConfig& pressure_of(const CacheConfig& config, Tier tier,
                                  const BlockManagerOptions& options) {
  const auto& own = config.pressure[index_of(tier)];
  return own ? *own : options.pressure[index_of(tier)];
}

Result<CacheConfig> changed(CacheConfig config, const CacheChange& change) {
  config.offload = change.offload.value_or(config.offload);
  config.eviction = change.eviction.value_or(config.eviction);
  config.default_lease_ms = change.default_lease_ms.value_or(config.default_lease_ms);
  config.quota = change.quota.value_or(config.quota);
  for (Tier tier : kTiers) {
    const std::size_t i = index_of(tier);
    const std::string name(to_string(tier));
    if (!change.pressure[i] && !change.num_blocks[i]) continue;
    if (!config.tiers[i]) {
      return Error{ErrorCode::unknown_tier, "cache " + config.name + " has no tier " + name};
    }
    if (change.num_blocks[i] && tier == Tier::device) {
      return Error{ErrorCode::impossible,
                   "tiers.device is named, but only pinned and disk tiers can be resized"};
    }
    if (change.pressure[i]) config.pressure[i] = change.pressure[i];
    if (change.num_blocks[i]) config.tiers[i]->num_blocks = *change.num_blocks[i];
  }
  return config;
}

CacheConfig filled_in(CacheConfig config) {
  auto& disk = config.tiers[index_of(Tier::disk)];
  if (disk && disk->path.empty()) disk->path = config.name;
  return config;
}

}  // namespace cairn
