#pragma once

#include <prometheus/metric_family.h>

#include <span>
#include <vector>

#include "memory/alloc/statistics.hpp"

namespace cairn {

void add_allocators(std::vector<prometheus::MetricFamily>& out,
                    std::span<const NamedAllocator> allocators);

}  // namespace cairn
