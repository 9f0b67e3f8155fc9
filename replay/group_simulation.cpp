#include "replay/group_simulation.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <utility>

namespace cairn::replay {
namespace {

// Never evicts anything.
constexpr std::uint64_t kEndless = std::numeric_limits<std::uint64_t>::max();

std::uint64_t hits_in(ShadowGroups& cache, std::span<const ShadowRequest> requests) {
  std::uint64_t hits = 0;
  for (const ShadowRequest& request : requests) hits += cache.request(request).matched;
  return hits;
}

std::uint64_t hits_of(ShadowGroups::Options options, std::span<const ShadowRequest> requests) {
  ShadowGroups cache(std::move(options));
  return hits_in(cache, requests);
}

// A cache that never evicts.
struct Endless {
  std::uint64_t hits = 0;
  std::vector<double> shares = {};  // of each group in its bytes
};

Endless endless_of(ShadowGroups::Options options, std::span<const ShadowRequest> requests) {
  options.capacity_bytes = kEndless;
  const std::size_t groups = options.groups.size();
  ShadowGroups cache(std::move(options));
  Endless endless{.hits = hits_in(cache, requests)};
  for (std::size_t g = 0; g < groups; ++g) {
    endless.shares.push_back(static_cast<double>(cache.used_bytes(g)));
  }
  const double all = std::accumulate(endless.shares.begin(), endless.shares.end(), 0.0);
  for (double& share : endless.shares) share /= std::max(all, 1.0);
  return endless;
}

}  // namespace

Result<SimulationOutcome> simulate_groups(const SimulationOptions& options, const KvModel& model,
                                          Workload& workload, std::uint64_t limit,
                                          const HintOptions& hints) {
  auto read = ReadRequests::from(workload, limit, model.block_tokens);
  if (!read) return std::move(read).error();
  if (hints) read->give_hints(hints);
  const std::span<const ShadowRequest> requests = read->requests();
  SimulationOutcome outcome{.requests = requests.size(),
                            .blocks = read->blocks(),
                            .different = read->different(),
                            .capacities_blocks = options.capacities_blocks,
                            .kv_groups = SimulationOutcome::KvGroups{
                                .model = model.name, .block_bytes = model.as_if_full_bytes()}};
  for (const KvModel::Group& group : model.groups) outcome.kv_groups->names.push_back(group.name);
  const double blocks = std::max(1.0, static_cast<double>(read->blocks()));
  const auto start = std::chrono::steady_clock::now();
  const auto add = [&](std::string name, auto&& hits) {
    SimulationOutcome::Row row{.name = std::move(name)};
    for (const std::uint32_t capacity : options.capacities_blocks) {
      row.hit_rates.push_back(static_cast<double>(hits(capacity)) / blocks);
    }
    outcome.rows.push_back(std::move(row));
  };
  const auto cache_of = [&](EvictionKind eviction, std::uint32_t capacity_blocks) {
    return shadow_of(model, eviction, capacity_blocks);
  };
  for (const SimulatedOrder& order : options.policies) {
    add(std::string(order.name()), [&](std::uint32_t capacity) {
      return hits_of(cache_of(order.eviction, capacity), requests);
    });
  }
  const Endless endless = endless_of(cache_of(EvictionKind::lru, 1), requests);
  add("lru_pools", [&](std::uint32_t capacity) {
    ShadowGroups::Options pools = cache_of(EvictionKind::lru, capacity);
    for (const double share : endless.shares) {
      pools.pool_bytes.push_back(
          static_cast<std::uint64_t>(share * static_cast<double>(pools.capacity_bytes)));
    }
    return hits_of(std::move(pools), requests);
  });
  add("all_full", [&](std::uint32_t capacity) {
    ShadowGroups::Options one = cache_of(EvictionKind::lru, capacity);
    one.groups = {{.block_bytes = model.as_if_full_bytes()}};
    return hits_of(std::move(one), requests);
  });
  add("no_eviction", [&](std::uint32_t) { return endless.hits; });
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  const auto runs =
      static_cast<double>((outcome.rows.size() - 1) * options.capacities_blocks.size());
  outcome.blocks_per_s = passed.count() > 0 ? blocks * (runs + 1) / passed.count() : 0;
  return outcome;
}

ShadowGroups::Options shadow_of(const KvModel& model, EvictionKind eviction,
                                std::uint32_t capacity_blocks) {
  ShadowGroups::Options options{.eviction = eviction,
                                .block_tokens = model.block_tokens,
                                .groups = model.use().groups(),
                                .capacity_bytes = capacity_blocks * model.as_if_full_bytes(),
                                .policy_blocks = capacity_blocks + capacity_blocks / 2};
  // As many evicted blocks as a server remembers, which counts the slots that would fit.
  std::uint64_t least = kEndless;
  for (const UsedGroup& group : options.groups) least = std::min(least, group.block_bytes);
  const std::uint64_t slots = options.capacity_bytes / least;
  options.ghost_blocks = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(8 * slots, 65'536, std::uint64_t{1} << 28U));
  return options;
}

}  // namespace cairn::replay
