#pragma once

#include <prometheus/metric_family.h>

#include <vector>

#include "blockmgr/share/share_stats.hpp"

namespace cairn {

void add_groups(std::vector<prometheus::MetricFamily>& out, const GroupsStats& stats);

}  // namespace cairn
