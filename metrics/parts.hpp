#pragma once

#include <prometheus/metric_family.h>

#include <span>
#include <vector>

#include "metrics/exposition.hpp"

// What exposition.cpp gathers from the other files.
namespace cairn {

void add_agents(std::vector<prometheus::MetricFamily>& out, const AgentStats& stats);
void add_allocators(std::vector<prometheus::MetricFamily>& out,
                    std::span<const NamedAllocator> allocators);
void add_groups(std::vector<prometheus::MetricFamily>& out, const GroupsStats& stats);
void add_shared(std::vector<prometheus::MetricFamily>& out, const SharedStats& stats);

}  // namespace cairn
