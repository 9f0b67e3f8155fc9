#pragma once

#include "blockmgr/index/quota_share.hpp"

namespace cairn {

// How many bytes of host memory that is not the server's own may be mapped at once, for whom. The
// kernel charges a page to whoever touches it first, so memory that an engine never wrote becomes
// the server's when blocks are copied to it or from it.
class MemoryQuota : public QuotaCount {
 public:
  struct Terms {
    std::uint64_t limit_bytes = 0;
    std::string whose;  // with the name of the limit, for refusals
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
