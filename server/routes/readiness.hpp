#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.hpp"
#include "memory/device_runtime.hpp"

namespace cairn {

enum class Phase : std::uint8_t {
  starting,
  serving,
  leaving,  // serves everything, and says to those who ask that it will not for long
  draining,
};

std::string_view to_string(Phase phase);

// unavailable, with the reason, where a load balancer should send nobody here: also with a lost
// device, although blocks on other tiers are still served.
Result<> check_ready(Phase phase, const DeviceRuntime& runtime);

}  // namespace cairn
