#pragma once

#include "blockmgr/index/config.hpp"
#include "server/codec/fields.hpp"

// Memory that several processes map, as JSON. An import takes what an export returns.
namespace cairn {

// Reads the member `handle` of cuda_ipc memory.
std::string read_cuda_handle(Fields& fields);

ordered_json tier_memory_body(const TierMemory& memory);

// Reads the members of "import".
TierMemory read_tier_memory(Fields& fields);

}  // namespace cairn
