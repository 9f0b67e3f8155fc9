#pragma once

#include "memory/device_runtime.hpp"

namespace cairn {

// Facts about this machine and the memory of host devices: pages of a memory file, mapped here and
// by the engines that a tier is exported to.
struct HostMemoryFacts {
  bool can_be_shared = false;    // one file's pages can be mapped at two addresses
  bool is_seen_at_once = false;  // a write at one address is read at the other, without a copy
};

// Maps two pages of a memory file twice, and looks at each mapping what was written at the other.
HostMemoryFacts read_host_memory_facts();

// How far a CPU write is visible on this machine. `system` if each mapping sees it at once, as with
// coherent caches. `explicit_dma` if the other mapping may keep old bytes, as with caches that are
// indexed by virtual addresses. `device` if the kernel shares no memory between mappings (some
// sandboxes): then only this process sees it.
MemoryVisibility host_visibility(const HostMemoryFacts& facts);

}  // namespace cairn
