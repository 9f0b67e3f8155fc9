#pragma once

#include <cstdint>
#include <span>

#include "blockmgr/eviction/shadow_caches.hpp"

namespace cairn {

// How many blocks the requests would find, in the model of ShadowRoom, if the block whose next use
// is furthest away is evicted first. No eviction order does better.
std::uint64_t optimum_hits(std::span<const ShadowRequest> requests, std::uint32_t capacity_blocks);

}  // namespace cairn
