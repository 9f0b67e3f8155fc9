#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.hpp"
#include "memory/device_runtime.hpp"
#include "server/config/unmade_caches.hpp"

namespace cairn {

enum class Phase : std::uint8_t {
  starting,
  serving,
  leaving,  // serves everything, but reports that it will stop
  draining,
};

std::string_view to_string(Phase phase);

// Returns unavailable, with the reason, if a load balancer should send no requests here. A lost
// device or a missing cache is also a reason, although all else is still served.
Result<> check_ready(Phase phase, const DeviceRuntime& runtime, const UnmadeCaches& unmade);

}  // namespace cairn
