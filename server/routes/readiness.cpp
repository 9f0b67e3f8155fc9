#include "server/routes/readiness.hpp"

#include <string>

#include "base/assert.hpp"

namespace cairn {

std::string_view to_string(Phase phase) {
  switch (phase) {
    case Phase::starting:
      return "starting";
    case Phase::serving:
      return "ready";
    case Phase::leaving:
    case Phase::draining:
      return "draining";
  }
  invariant_broken("Phase", "a value outside the enumeration");
}

Result<> check_ready(Phase phase, const DeviceRuntime& runtime) {
  if (phase != Phase::serving) {
    return Error{ErrorCode::unavailable, "the server is " + std::string(to_string(phase))};
  }
  if (auto lost = runtime.lost()) return Error{ErrorCode::unavailable, *std::move(lost)};
  return {};
}

}  // namespace cairn
