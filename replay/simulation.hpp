#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "blockmgr/eviction/capacity_curve.hpp"
#include "replay/options.hpp"
#include "replay/workload.hpp"

namespace cairn::replay {

struct SimulationOutcome {
  std::uint64_t requests = 0;
  std::uint64_t blocks = 0;     // blocks requested
  std::uint64_t different = 0;  // of those, found
  double blocks_per_s = 0;      // of all rows together
  std::vector<std::uint32_t> capacities_blocks = {};
  struct Row {
    std::string name;
    std::vector<double> hit_rates = {};  // 0 to 1, by capacity
  };
  std::vector<Row> rows = {};  // the policies in the requested order, then what to compare with
  struct KvGroups {
    std::string model;
    std::vector<std::string> names = {};
    std::uint64_t block_bytes = 0;  // of the capacities: all layers as if each were full
  };
  std::optional<KvGroups> kv_groups = {};                   // set: with the KV groups of a model
  std::map<AgentAction::Type, std::uint64_t> actions = {};  // how many of each there were
};

// Runs the workload through a cache of each size and order of eviction, in memory: see
// ShadowCaches. `limit` requests at most; 0: all. `hints`: the hints of the requests' users; if
// there are none, the workload's own.
//
// Of the workload's actions it models pins, within a server's share of a tier, and retains of the
// request's own blocks, as the hint that they include. A cache of one tier has nowhere to demote
// to or to fetch from, so these change nothing, as in a server.
Result<SimulationOutcome> simulate(const SimulationOptions& options, Workload& workload,
                                   std::uint64_t limit, const HintOptions& hints = {});

// All requests of a workload, in memory: 8 bytes per block.
class ReadRequests {
 public:
  // Requests of blocks of `block_tokens` tokens. `limit` at most; 0: all.
  static Result<ReadRequests> from(Workload& workload, std::uint64_t limit,
                                   std::uint64_t block_tokens);
  // Gives each request the hint of its user, from reading ahead. Replaces the workload's own.
  void give_hints(const HintOptions& hints);
  std::span<const ShadowRequest> requests() const { return requests_; }
  struct Actions {
    std::vector<AgentAction> before;
    std::vector<AgentAction> after;
  };
  // Those of each request; empty if the workload has none.
  std::span<const Actions> actions() const { return actions_; }
  std::uint64_t blocks() const { return blocks_.size(); }
  std::uint64_t different() const;

 private:
  std::vector<std::uint64_t> blocks_;
  std::vector<ShadowRequest> requests_;
  std::vector<Actions> actions_;
};

// A cache that remembers as many evicted blocks as a server does, 13 bytes each.
ShadowCaches::Options shadow_of(EvictionKind eviction, std::uint32_t capacity_blocks);
// The calls that a server makes to the curve beside a cache (ReuseWatch): once per request before
// the cache, and once after it.
void report_asked(CapacityCurve& curve, const ShadowCaches& cache, const ShadowRequest& request);
void report_ended(CapacityCurve& curve, const ShadowCaches& cache, const ShadowRequest& request);

}  // namespace cairn::replay
