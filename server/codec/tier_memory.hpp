#pragma once

#include "blockmgr/index/config.hpp"
#include "server/codec/fields.hpp"

// Memory that more than one process maps, as the contract writes it: the answer of an export is
// what an import takes.
namespace cairn {

// The member handle, of cuda_ipc.
std::string read_cuda_handle(Fields& fields);

ordered_json tier_memory_body(const TierMemory& memory);

// The members of "import".
TierMemory read_tier_memory(Fields& fields);

}  // namespace cairn
