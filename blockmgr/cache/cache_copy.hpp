#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "blockmgr/cache/cache.hpp"

namespace cairn {

// Copies blocks from one cache to another of the same shape, under the same keys, with their
// parents and metadata. Between caches on two devices, the runtime copies directly if it can.
// Blocks that are already in tier `to` count as done. The copy pins them until its end, so that
// making room does not evict them. A block that the destination has in another tier is copied from
// there to `to`.
//
// Errors: unknown_key if `from` lacks a key; lease_quota; impossible for caches of different
// shapes, for one and the same cache, or if `to` is the disk tier (move the blocks there inside the
// cache). The transfer reports no_capacity and failed copies.
struct CacheCopyRequest {
  std::shared_ptr<Cache> from;
  std::shared_ptr<Cache> into;
  std::vector<BlockKey> keys;
  Tier to = Tier::device;
  std::int32_t priority = 0;
  std::shared_ptr<BlockQuota> quota = {};
  std::shared_ptr<LeaseQuota> pins = {};  // counts the keys until the copy ends; null: none
};
Result<TransferId> copy_between_caches(CacheCopyRequest request);

}  // namespace cairn
