#pragma once

#include "blockmgr/index/quota_share.hpp"

namespace cairn {

// How many blocks somebody's leases and requests in flight may hold in all caches, and how many
// they do: a block as often as it is held.
class LeaseQuota : public QuotaCount {
 public:
  using QuotaCount::QuotaCount;
  // What is answered where so many more do not fit.
  Error refusal(std::uint64_t more) const {
    return {ErrorCode::lease_quota,
            "leases and requests of this token hold " + std::to_string(used()) + " blocks, and " +
                std::to_string(more) + " more would be over its limit of " +
                std::to_string(limit()) + "; ask for fewer, release some, or let them end"};
  }
};
using LeaseQuotaShare = QuotaShare<LeaseQuota>;

}  // namespace cairn
