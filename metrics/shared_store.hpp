#pragma once

#include <prometheus/metric_family.h>

#include <vector>

#include "blockmgr/shared/shared_tier.hpp"
#include "transport/store/block_peers.hpp"
#include "transport/store/shared_store.hpp"

namespace cairn {

struct SharedStats {
  SharedStoreStats store;
  BlockPeers::Stats peers;
  std::vector<SharedTierStats> tiers;
  std::uint64_t missed_events = 0;
  std::uint64_t same_url = 0;  // servers
};

void add_shared(std::vector<prometheus::MetricFamily>& out, const SharedStats& stats);

}  // namespace cairn
