#pragma once

#include <array>

#include "blockmgr/eviction/hazard_table.hpp"
#include "blockmgr/eviction/policy.hpp"
#include "blockmgr/eviction/request_log.hpp"

namespace cairn {

// Learns worth by class of block and age since the last use. Without a hint, the class depends on
// the number of uses, on how much of the request was new, and on the output's length. With a hint,
// it depends on the hint and the output's length. Hubs and tails are separate classes. How reliable
// hints are is learnt too.
class ClassHazard final : public EvictionPolicy {
 public:
  explicit ClassHazard(const PolicyOptions& options);

  std::uint32_t lists() const override;
  float worth(const BlockHistory& block, std::uint32_t expected_blocks) const override;
  std::uint64_t memory_bytes() const override;
  std::uint64_t kept(const BlockHistory& block) const override;
  bool take_kept(BlockHistory& block, std::uint64_t kept, NextUse hinted) override;
  std::vector<std::byte> learnt() override {
    settle_all();
    return table_.learnt();
  }
  bool take_learnt(std::span<const std::byte> learnt) override {
    return table_.take_learnt(learnt);
  }

 private:
  RequestNumber begin_request(const RequestStart& start) override;
  std::uint32_t touch(BlockHistory& block, RequestNumber request) override;
  std::uint32_t list(BlockHistory& block, NextUse hinted) override;
  void touched_more(const BlockHistory& before, RequestNumber request,
                    std::uint32_t count) override;
  void listed_more(const BlockHistory& after, std::uint32_t count) override;
  std::optional<std::uint32_t> end_request(RequestNumber request, const RequestEnd& end) override;
  void rehint(BlockHistory& block, RequestNumber request) override;
  void count_use(const BlockHistory& before, PastRequest& now, std::uint32_t blocks);

  static std::uint32_t class_of(BlockGroup group, const PastRequest& request);
  static float weight_of(const PastRequest& request);
  void settle_all();
  void settle(RequestNumber number);
  void pass_over_restored();

  RequestLog log_;
  HazardTable table_;
  std::vector<RequestNumber> inside_;  // by bucket: the oldest request that settle_all() left in it
  std::uint32_t until_rebuild_ = 0;
  // The request of the last restored block. Blocks of one request are restored one after the other.
  struct Restored {
    std::uint64_t of_request = 0;  // kept() data of the request; 0: none was restored
    NextUse hinted = NextUse::unknown;
    RequestNumber number = 0;
  } restored_;
  std::uint32_t earlier_runs_blocks_ = 0;  // requested in earlier runs
  // The bucket of the request that last used the blocks being found: mostly the same for many of
  // them.
  struct Seen {
    RequestNumber request = 0;
    std::uint32_t bucket = 0;
    bool is_known = false;
  } seen_;
};

}  // namespace cairn
