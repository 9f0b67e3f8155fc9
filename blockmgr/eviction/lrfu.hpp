#pragma once

#include "blockmgr/eviction/policy.hpp"
#include "blockmgr/eviction/request_log.hpp"

namespace cairn {

// Least recently and frequently used (Lee and others, 2001): each use counts one, and half of that
// after each half-life. Counts of equal size share a list, so that the order is exact to an eighth
// of a half-life. A hint is worth uses: what is expected soon counts one more while it lies there,
// what is used late counts half of one, what is never used again goes first.
class Lrfu final : public EvictionPolicy {
 public:
  static constexpr std::int64_t kHalfLifeMs = 200'000;

  explicit Lrfu(const PolicyOptions& options);

  std::uint32_t lists() const override { return kMaxLists; }
  std::uint64_t kept(const BlockHistory& block) const override;
  bool take_kept(BlockHistory& block, std::uint64_t kept, NextUse told) override;
  float worth(const BlockHistory& block, std::uint32_t expected_blocks) const override;
  std::uint64_t memory_bytes() const override { return log_.memory_bytes(); }

 private:
  RequestNumber begin_request(const RequestStart& start) override;
  std::uint32_t touch(BlockHistory& block, RequestNumber request) override;
  std::uint32_t list(BlockHistory& block, NextUse told) override;

  RequestLog log_;
};

}  // namespace cairn
