#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "blockmgr/cache/cache.hpp"

namespace cairn {

// Copies blocks of one cache to another of the same shape, under the same keys: say from a cache on
// one device to one on another, whose runtime then copies from device to device where it can. The
// new blocks have the parents and metadata of the old ones. What is there already counts as done,
// and is held until the end, so that making room for the rest does not take it away; what the other
// cache has in another tier is brought from there, as its older block stays.
//
// unknown_key where `from` lacks one; impossible for caches of different shapes, for one and the
// same, or where `to` is the disk tier (a movement inside the cache brings them there); no_capacity
// and failures of copies are told by the transfer. lease_quota.
struct CacheCopyRequest {
  std::shared_ptr<Cache> from;
  std::shared_ptr<Cache> into;
  std::vector<BlockKey> keys;
  Tier to = Tier::device;
  std::int32_t priority = 0;
  std::shared_ptr<BlockQuota> quota = {};
  std::shared_ptr<LeaseQuota> pins = {};  // where its keys count until its end; null: nowhere
};
Result<TransferId> copy_between_caches(CacheCopyRequest request);

}  // namespace cairn
