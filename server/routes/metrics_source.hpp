#pragma once

#include <string>
#include <vector>

#include "metrics/exposition.hpp"
#include "server/routes/traffic_history.hpp"

namespace cairn {

struct Service;

// All that the service has memory from.
std::vector<NamedAllocator> allocators_of(const Service& service);
// The server's metrics as text, read from what it works on.
std::string collect_metrics(const Service& service);
// What the history is made of.
TrafficHistory::Counts traffic_counts(const Service& service);

}  // namespace cairn
