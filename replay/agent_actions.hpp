#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.hpp"
#include "replay/options.hpp"
#include "replay/workload.hpp"

namespace cairn::replay {

// The same requests, with the actions that an agent framework would send: at the pauses of
// conversations, and before their next turns. `limit` at most; 0: all. Keeps them in memory.
//
// A conversation pauses after each request that another one of it follows; where the workload does
// not number them, it goes on when half of a prompt is requested again. The actions come from
// reading ahead, as far as ActionOptions::right says: the others name the blocks of another
// conversation, or a wrong time.
Result<std::unique_ptr<Workload>> with_actions(Workload& workload, std::uint64_t limit,
                                               const ActionOptions& actions);

// The same requests with their actions, in the order of their time.
void add_actions(std::vector<PromptRequest>& requests, const ActionOptions& actions);

}  // namespace cairn::replay
