// Cache: estimates its hit rates at other sizes or with other orders of eviction.
#include <algorithm>
#include <cmath>

#include "blockmgr/cache/cache.hpp"
#include "blockmgr/core/cache_core.hpp"
#include "blockmgr/index/config_check.hpp"

namespace cairn {
namespace {

constexpr double kGiB = 1 << 30;

// A tier together with those above it, because a block found above need not come from below. Their
// size in blocks, now and with more blocks in the tier.
struct TierReach {
  Tier tier = Tier::device;
  std::uint64_t blocks = 0;
  std::uint64_t grown_blocks = 0;
};

std::vector<TierReach> reaches_of(const CacheConfig& config, std::uint64_t added) {
  // A cache that writes through also stores the blocks of a tier in each lower tier.
  const bool holds_twice = config.offload == OffloadMode::on_commit;
  std::vector<TierReach> reaches;
  std::uint64_t above = 0;
  for (const Tier tier : kTiers) {
    const auto& one = config.tiers[index_of(tier)];
    if (!one) continue;
    const auto with = [&](std::uint64_t blocks) {
      return holds_twice ? std::max(above, blocks) : above + blocks;
    };
    reaches.push_back({tier, with(one->num_blocks), with(one->num_blocks + added)});
    above = reaches.back().blocks;
  }
  return reaches;
}

}  // namespace

MissRatio Cache::miss_ratio(const MissRatioRequest& request) const {
  const CacheConfig config = this->config();
  MissRatio result{.capacity_blocks = different_blocks(config)};
  std::vector<std::uint64_t> capacities = request.capacities_blocks;
  if (capacities.empty()) {
    for (const double ratio : kCurveRatios) {
      const double blocks = ratio * static_cast<double>(result.capacity_blocks);
      capacities.push_back(static_cast<std::uint64_t>(std::max(1.0, std::round(blocks))));
    }
  }
  const std::size_t asked_about = capacities.size();
  const auto added = static_cast<std::uint64_t>(
      std::max(1.0, std::floor(kGiB / static_cast<double>(core_->block_bytes))));
  const std::uint64_t own = result.capacity_blocks;
  for (const std::uint64_t blocks : {std::max<std::uint64_t>(1, own / 2), own, 2 * own}) {
    capacities.push_back(blocks);
  }
  const std::size_t first_reach = capacities.size();
  const std::vector<TierReach> reaches = reaches_of(config, added);
  for (const TierReach& reach : reaches) {
    capacities.push_back(reach.blocks);
    capacities.push_back(reach.grown_blocks);
  }
  const ReuseWatch::Report report = core_->reuse.report(capacities, request.with_optimum);
  result.requests = report.requests;
  result.blocks_per_s = report.blocks_per_s;
  result.follows_lru = core_->reuse.follows_lru();
  result.order_changes = report.order_changes;
  const auto point = [&](std::size_t i) {
    return MissRatio::Point{capacities[i], report.points[i].lru, report.points[i].policy};
  };
  for (std::size_t i = 0; i < asked_about; ++i) result.points.push_back(point(i));
  result.halved = point(asked_about);
  result.now = point(asked_about + 1);
  result.doubled = point(asked_about + 2);
  result.optimum = report.optimum;
  // A block may be larger than a GiB.
  const double gibs = static_cast<double>(added) * static_cast<double>(core_->block_bytes) / kGiB;
  const double share = std::min(1.0, 1 / gibs);
  for (std::size_t i = 0; i < reaches.size(); ++i) {
    const auto& now = report.points[first_reach + 2 * i];
    const auto& then = report.points[first_reach + 2 * i + 1];
    MissRatio::Advice advice{.tier = reaches[i].tier, .added_blocks = added};
    advice.hit_rate = share * std::max(0.0, then.policy - now.policy);
    advice.hits_per_s = advice.hit_rate * report.blocks_per_s;
    advice.tokens_per_s = advice.hits_per_s * static_cast<double>(config.tokens_per_key());
    result.advice.push_back(advice);
  }
  return result;
}

}  // namespace cairn
