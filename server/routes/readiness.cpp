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

Result<> check_ready(Phase phase, const DeviceRuntime& runtime, const UnmadeCaches& unmade) {
  if (phase != Phase::serving) {
    return Error{ErrorCode::unavailable, "the server is " + std::string(to_string(phase))};
  }
  if (auto lost = runtime.lost()) return Error{ErrorCode::unavailable, *std::move(lost)};
  // The full reason is in GET /v1/system, which needs a token.
  std::string missing;
  for (const UnmadeCache& cache : unmade.list()) {
    if (cache.awaits_engine) continue;
    missing += (missing.empty() ? "" : ", ") + cache.name + " (" +
               std::string(to_string(cache.why.code)) + ")";
  }
  if (missing.empty()) return {};
  return Error{ErrorCode::unavailable, "these caches could not be made, and are retried: " +
                                           missing + "; GET /v1/system says why"};
}

}  // namespace cairn
