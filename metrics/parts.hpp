#pragma once

#include <prometheus/metric_family.h>

#include <span>
#include <vector>

#include "metrics/exposition.hpp"

// What exposition.cpp gathers from the other files.
namespace cairn {

void add_engine_memories(std::vector<prometheus::MetricFamily>& out,
                         const EngineMemoryStats& stats);
void add_allocators(std::vector<prometheus::MetricFamily>& out,
                    std::span<const NamedAllocator> allocators);
void add_groups(std::vector<prometheus::MetricFamily>& out, const GroupsStats& stats);
void add_codecs(std::vector<prometheus::MetricFamily>& out, const MetricsInput& input);
void add_remote(std::vector<prometheus::MetricFamily>& out, const RemoteStats& stats);

}  // namespace cairn
