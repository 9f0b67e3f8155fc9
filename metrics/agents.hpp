#pragma once

#include <prometheus/metric_family.h>

#include <vector>

#include "blockmgr/agent/agent_types.hpp"

namespace cairn {

void add_agents(std::vector<prometheus::MetricFamily>& out, const AgentStats& stats);

}  // namespace cairn
