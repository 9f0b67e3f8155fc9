#pragma once

#include "blockmgr/index/quota_share.hpp"

namespace cairn {

// Limits the bytes of foreign host memory mapped at once. The kernel charges a page to the process
// that touches it first. So pages that an engine never wrote count as the server's once blocks are
// copied to or from them.
class MemoryQuota : public QuotaCount {
 public:
  struct Terms {
    std::uint64_t limit_bytes = 0;
    std::string whose;  // the name of the limit, for refusals
  };
  explicit MemoryQuota(Terms terms)
      : QuotaCount(terms.limit_bytes), whose_(std::move(terms.whose)) {}
  Error refusal(std::uint64_t more) const {
    return {ErrorCode::no_capacity, std::to_string(used()) +
                                        " bytes of engines' memory are registered, and " +
                                        std::to_string(more) + " more would be over " + whose_ +
                                        " of " + std::to_string(limit())};
  }

 private:
  const std::string whose_;
};
using MemoryQuotaShare = QuotaShare<MemoryQuota>;

}  // namespace cairn
