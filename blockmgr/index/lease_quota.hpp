#pragma once

#include "blockmgr/index/quota_share.hpp"

namespace cairn {

// Limits how many blocks the leases and running requests of a token may hold in all caches, and
// counts them. A block counts each time it is held.
class LeaseQuota : public QuotaCount {
 public:
  using QuotaCount::QuotaCount;
  // The error if `more` blocks do not fit.
  Error refusal(std::uint64_t more) const {
    return {ErrorCode::lease_quota,
            "leases and requests of this token hold " + std::to_string(used()) + " blocks, and " +
                std::to_string(more) + " more would be over its limit of " +
                std::to_string(limit()) + "; ask for fewer, release some, or let them end"};
  }
};
using LeaseQuotaShare = QuotaShare<LeaseQuota>;

}  // namespace cairn
