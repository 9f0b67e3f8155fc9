#pragma once

#include <string>
#include <vector>

#include "metrics/exposition.hpp"

namespace cairn {

struct Service;

// All that the service has memory from.
std::vector<NamedAllocator> allocators_of(const Service& service);
// The server's metrics as text, read from what it works on.
std::string collect_metrics(const Service& service);

}  // namespace cairn
