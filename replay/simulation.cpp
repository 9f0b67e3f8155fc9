#include "replay/simulation.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <ranges>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "blockmgr/eviction/capacity_curve.hpp"
#include "blockmgr/eviction/optimum.hpp"
#include "replay/mix.hpp"
#include "replay/oracle.hpp"

namespace cairn::replay {
namespace {

constexpr std::uint64_t kTicket = 1;  // of the current request

// As a server without a setting: all pins together keep at most this share of a tier.
constexpr double kMaxPinnedShare = 0.25;

std::uint64_t hash_of(std::uint64_t id) { return mix(id + kGolden); }

// The pins in a cache of one tier. A block counts once, however many pins name it.
class SimulatedPins {
 public:
  SimulatedPins(ShadowCaches& cache, std::uint32_t capacity_blocks)
      : cache_(cache), room_(static_cast<std::uint64_t>(kMaxPinnedShare * capacity_blocks)) {}

  // `own`: the blocks of the request that the actions follow.
  void apply(std::span<const AgentAction> actions, std::span<const std::uint64_t> own) {
    for (const AgentAction& action : actions) {
      if (action.type == AgentAction::Type::unpin) {
        end(action.pin);
      } else if (action.type == AgentAction::Type::pin) {
        begin(action, own);
      }
    }
  }

 private:
  void begin(const AgentAction& action, std::span<const std::uint64_t> own) {
    std::vector<std::uint64_t>& pin = pins_[action.pin];
    if (action.hash_ids == nullptr) {
      for (const std::uint64_t hash : own) add(pin, hash);
    } else {
      for (const std::uint64_t id : *action.hash_ids) add(pin, hash_of(id));
    }
  }
  void add(std::vector<std::uint64_t>& pin, std::uint64_t hash) {
    const auto pinned = pinned_.find(hash);
    if (pinned != pinned_.end()) {
      ++pinned->second;
    } else {
      if (pinned_.size() == room_ || !cache_.protect(hash)) return;
      pinned_.emplace(hash, 1);
    }
    pin.push_back(hash);
  }
  void end(std::uint64_t number) {
    const auto pin = pins_.find(number);
    if (pin == pins_.end()) return;
    // The end of a prefix stays its least recently used part.
    for (const std::uint64_t hash : std::views::reverse(pin->second)) {
      const auto pinned = pinned_.find(hash);
      if (--pinned->second > 0) continue;
      pinned_.erase(pinned);
      cache_.unprotect(hash);
    }
    pins_.erase(pin);
  }

  ShadowCaches& cache_;
  const std::uint64_t room_;
  std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> pins_;  // by number
  std::unordered_map<std::uint64_t, std::uint32_t> pinned_;  // by how many pins each block is
};

std::uint64_t hits_of(const ReadRequests& read, const SimulatedOrder& order,
                      std::uint32_t capacity_blocks) {
  ShadowCaches cache(shadow_of(order.eviction, capacity_blocks));
  SimulatedPins pins(cache, capacity_blocks);
  const std::span<const ReadRequests::Actions> actions = read.actions();
  std::optional<CapacityCurve> curve;
  if (order.adapts) {
    curve.emplace(
        CapacityCurve::Options{.eviction = order.eviction, .capacity_blocks = capacity_blocks});
  }
  std::uint64_t hits = 0;
  for (std::size_t i = 0; i < read.requests().size(); ++i) {
    const ShadowRequest& request = read.requests()[i];
    if (!actions.empty()) pins.apply(actions[i].before, {});
    if (curve) {
      report_asked(*curve, cache, request);
      cache.follow_lru(0, curve->choice().follows_lru());
    }
    hits += cache.request(request);
    if (curve) report_ended(*curve, cache, request);
    if (!actions.empty()) pins.apply(actions[i].after, request.blocks);
  }
  return hits;
}

// What the user of a request says of its blocks, with its release or after it.
NextUse next_use_of(const PromptRequest& request) {
  for (const AgentAction& action : request.after) {
    if (action.type != AgentAction::Type::retain || action.hash_ids != nullptr) continue;
    // As a server: a hint for a later time would let them go first.
    const auto within_ms = std::min<std::uint64_t>(action.length_ms, kLongestExpectedMs);
    return ReuseHint{.kind = ReuseHint::Kind::within, .within_ms = within_ms}.next_use();
  }
  return request.hint.next_use();
}

std::map<AgentAction::Type, std::uint64_t> counted(
    std::span<const ReadRequests::Actions> of_requests) {
  std::map<AgentAction::Type, std::uint64_t> counts;
  for (const ReadRequests::Actions& actions : of_requests) {
    for (const AgentAction& action : actions.before) ++counts[action.type];
    for (const AgentAction& action : actions.after) ++counts[action.type];
  }
  return counts;
}

}  // namespace

Result<ReadRequests> ReadRequests::from(Workload& workload, std::uint64_t limit,
                                        std::uint64_t block_tokens) {
  ReadRequests all;
  std::vector<std::size_t> ends;
  bool has_actions = false;
  while (limit == 0 || all.requests_.size() < limit) {
    auto request = workload.next();
    if (!request) return std::move(request).error();
    if (!request->has_value()) break;
    PromptRequest& prompt = **request;
    std::optional<std::uint32_t> full_blocks;
    if (prompt.input_tokens > 0) {
      full_blocks = static_cast<std::uint32_t>(prompt.input_tokens / block_tokens);
    }
    for (const std::uint64_t id : prompt.hash_ids) all.blocks_.push_back(hash_of(id));
    ends.push_back(all.blocks_.size());
    all.requests_.push_back(
        {.unix_ms = static_cast<std::int64_t>(prompt.timestamp_ms),
         .end = {.output_tokens = static_cast<std::uint32_t>(
                     std::min<std::uint64_t>(prompt.output_tokens, ~std::uint32_t{0})),
                 .full_blocks = full_blocks,
                 .next_use = next_use_of(prompt)}});
    has_actions = has_actions || !prompt.before.empty() || !prompt.after.empty();
    all.actions_.push_back({std::move(prompt.before), std::move(prompt.after)});
  }
  if (!has_actions) all.actions_.clear();
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
  if (hints) read->give_hints(hints);
  SimulationOutcome outcome{.requests = read->requests().size(),
                            .blocks = read->blocks(),
                            .different = read->different(),
                            .capacities_blocks = options.capacities_blocks,
                            .actions = counted(read->actions())};
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
        [&](std::uint32_t capacity) { return hits_of(*read, order, capacity); });
  }
  add("optimum", [&](std::uint32_t capacity) { return optimum_hits(read->requests(), capacity); });
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  const auto runs = static_cast<double>(outcome.rows.size() * outcome.capacities_blocks.size());
  outcome.blocks_per_s = passed.count() > 0 ? blocks * runs / passed.count() : 0;
  return outcome;
}

}  // namespace cairn::replay
