#include "replay/simulation.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <unordered_set>

#include "blockmgr/eviction/capacity_curve.hpp"
#include "blockmgr/eviction/optimum.hpp"
#include "replay/mix.hpp"
#include "replay/oracle.hpp"

namespace cairn::replay {
namespace {

constexpr std::uint64_t kTicket = 1;  // of the current request

std::uint64_t hits_of(std::span<const ShadowRequest> requests, const SimulatedOrder& order,
                      std::uint32_t capacity_blocks) {
  ShadowCaches cache(shadow_of(order.eviction, capacity_blocks));
  std::optional<CapacityCurve> curve;
  if (order.adapts) {
    curve.emplace(
        CapacityCurve::Options{.eviction = order.eviction, .capacity_blocks = capacity_blocks});
  }
  std::uint64_t hits = 0;
  for (const ShadowRequest& request : requests) {
    if (curve) {
      report_asked(*curve, cache, request);
      cache.follow_lru(0, curve->choice().follows_lru());
    }
    hits += cache.request(request);
    if (curve) report_ended(*curve, cache, request);
  }
  return hits;
}

}  // namespace

Result<ReadRequests> ReadRequests::from(Workload& workload, std::uint64_t limit,
                                        std::uint64_t block_tokens) {
  ReadRequests all;
  std::vector<std::size_t> ends;
  while (limit == 0 || all.requests_.size() < limit) {
    auto request = workload.next();
    if (!request) return std::move(request).error();
    if (!request->has_value()) break;
    const PromptRequest& prompt = **request;
    std::optional<std::uint32_t> full_blocks;
    if (prompt.input_tokens > 0) {
      full_blocks = static_cast<std::uint32_t>(prompt.input_tokens / block_tokens);
    }
    for (const std::uint64_t id : prompt.hash_ids) all.blocks_.push_back(mix(id + kGolden));
    ends.push_back(all.blocks_.size());
    all.requests_.push_back(
        {.unix_ms = static_cast<std::int64_t>(prompt.timestamp_ms),
         .end = {.output_tokens = static_cast<std::uint32_t>(
                     std::min<std::uint64_t>(prompt.output_tokens, ~std::uint32_t{0})),
                 .full_blocks = full_blocks}});
  }
  std::size_t first = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    all.requests_[i].blocks = std::span(all.blocks_).subspan(first, ends[i] - first);
    first = ends[i];
  }
  return all;
}

void ReadRequests::give_hints(const HintOptions& hints) {
  Oracle oracle(hints);
  for (std::size_t i = requests_.size(); i-- > 0;) {
    ShadowRequest& request = requests_[i];
    const ReuseHint hint = oracle.says_of({.number = i,
                                           .blocks = request.blocks,
                                           .full_blocks = request.end.full_blocks.value_or(0),
                                           .unix_ms = request.unix_ms});
    request.end.next_use = hint.next_use();
  }
}

std::uint64_t ReadRequests::different() const {
  return std::unordered_set<std::uint64_t>(blocks_.begin(), blocks_.end()).size();
}

ShadowCaches::Options shadow_of(EvictionKind eviction, std::uint32_t capacity_blocks) {
  return {.eviction = eviction,
          .sizes = {{.capacity_blocks = capacity_blocks}},
          .ghost_blocks = std::max(65'536U, 8 * capacity_blocks)};
}

void report_asked(CapacityCurve& curve, const ShadowCaches& cache, const ShadowRequest& request) {
  CapacityCurve::Request asked{.blocks = static_cast<std::uint32_t>(request.blocks.size()),
                               .unix_ms = request.unix_ms,
                               .ticket = kTicket};
  for (const std::uint64_t hash : request.blocks) {
    const AskedBlock block{.key_hash = hash, .is_hub = cache.is_hub(hash)};
    asked.has_last = block.is_hub || (hash & curve.left_out_bits()) == 0;
    if (asked.has_last) asked.followed.push_back(block);
  }
  curve.asked(std::move(asked));
}

void report_ended(CapacityCurve& curve, const ShadowCaches& cache, const ShadowRequest& request) {
  RequestEnd end = request.end;
  end.unknown_blocks = cache.unknown_blocks();
  curve.ended(kTicket, end);
}

Result<SimulationOutcome> simulate(const SimulationOptions& options, Workload& workload,
                                   std::uint64_t limit, const HintOptions& hints) {
  auto read = ReadRequests::from(workload, limit, options.block_tokens);
  if (!read) return std::move(read).error();
  read->give_hints(hints);
  SimulationOutcome outcome{.requests = read->requests().size(),
                            .blocks = read->blocks(),
                            .different = read->different(),
                            .capacities_blocks = options.capacities_blocks};
  const double blocks = std::max(1.0, static_cast<double>(read->blocks()));
  const auto start = std::chrono::steady_clock::now();
  const auto add = [&](std::string name, auto&& hits) {
    SimulationOutcome::Row row{.name = std::move(name)};
    for (const std::uint32_t capacity : options.capacities_blocks) {
      row.hit_rates.push_back(static_cast<double>(hits(capacity)) / blocks);
    }
    outcome.rows.push_back(std::move(row));
  };
  for (const SimulatedOrder& order : options.policies) {
    add(std::string(order.name()),
        [&](std::uint32_t capacity) { return hits_of(read->requests(), order, capacity); });
  }
  add("optimum", [&](std::uint32_t capacity) { return optimum_hits(read->requests(), capacity); });
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  const auto runs = static_cast<double>(outcome.rows.size() * outcome.capacities_blocks.size());
  outcome.blocks_per_s = passed.count() > 0 ? blocks * runs / passed.count() : 0;
  return outcome;
}

}  // namespace cairn::replay
