#pragma once

#include <string>
#include <vector>

#include "metrics/exposition.hpp"
#include "server/routes/traffic_history.hpp"

namespace cairn {

struct Service;

// All allocators of the service.
std::vector<NamedAllocator> allocators_of(const Service& service);
// Those that have a pressure level, with the limit that it refers to.
std::vector<NamedAllocator> pools_of(const Service& service);
// The server's metrics as Prometheus text.
std::string collect_metrics(const Service& service);
// The counts from which the history is made.
TrafficHistory::Counts traffic_counts(const Service& service);

}  // namespace cairn
