#pragma once

#include "blockmgr/eviction/shadow_groups.hpp"
#include "replay/kv_model.hpp"
#include "replay/simulation.hpp"

namespace cairn::replay {

// As simulate(), for caches with the KV groups of a model: see ShadowGroups. The workload has one
// id per `model.block_tokens` tokens. After the requested orders of eviction come
// - lru_pools: LRU in a pool of its own for each group, as in engines. Each pool's share of the
//   bytes is that of its group in a cache that never evicts.
// - all_full: LRU, with each layer kept as if it had full attention.
// - no_eviction: the most that any order can find.
Result<SimulationOutcome> simulate_groups(const SimulationOptions& options, const KvModel& model,
                                          Workload& workload, std::uint64_t limit,
                                          const HintOptions& hints = {});

// A cache of `capacity_blocks` times the bytes of a block of all layers as if each were full.
ShadowGroups::Options shadow_of(const KvModel& model, EvictionKind eviction,
                                std::uint32_t capacity_blocks);

}  // namespace cairn::replay
