#pragma once

#include <string>

#include "metrics/exposition.hpp"

namespace cairn {

struct Service;

// The server's metrics as text, read from what it works on.
std::string collect_metrics(const Service& service);

}  // namespace cairn
