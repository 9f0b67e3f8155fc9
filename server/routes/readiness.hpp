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
  leaving,  // serves everything, and says to those who ask that it will not for long
  draining,
};

std::string_view to_string(Phase phase);

// unavailable, with the reason, where a load balancer should send nobody here: also with a lost
// device or without a cache that was there, although all else is still served.
Result<> check_ready(Phase phase, const DeviceRuntime& runtime, const UnmadeCaches& unmade);

}  // namespace cairn
