#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "replay/workload.hpp"

namespace cairn::replay {

// All requests of a workload, in memory. `limit` at most; 0: all.
Result<std::vector<PromptRequest>> read_all(Workload& workload, std::uint64_t limit);

// A workload of these requests.
std::unique_ptr<Workload> workload_from(std::vector<PromptRequest> requests, std::string name);

}  // namespace cairn::replay
