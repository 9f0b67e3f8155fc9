#pragma once

#include <array>

#include "blockmgr/eviction/hazard_table.hpp"
#include "blockmgr/eviction/policy.hpp"
#include "blockmgr/eviction/request_log.hpp"

namespace cairn {

// Worth is learnt by class of block and age since its last use. The class says how often the block
// was used, and what its user expects of it or else whether its request brought much that was new
// and how much was produced; hubs and tails are classes of their own. How far what is told is right
// is learnt as all else is.
class ClassHazard final : public EvictionPolicy {
 public:
  explicit ClassHazard(const PolicyOptions& options);

  std::uint32_t lists() const override;
  RequestNumber begin(const RequestStart& start) override;
  void touched(BlockHistory& block, RequestNumber request) override;
  void ended(RequestNumber request, const RequestEnd& end) override;
  void listed(BlockHistory& block, NextUse told) override;
  void retold(BlockHistory& block, RequestNumber request) override;
  float worth(const BlockHistory& block, std::uint32_t expected_blocks) const override;
  std::uint64_t memory_bytes() const override;
  std::vector<std::byte> learnt() const override { return table_.learnt(); }
  bool take_learnt(std::span<const std::byte> learnt) override {
    return table_.take_learnt(learnt);
  }

 private:
  // The blocks of a prompt were mostly used and listed together before: their histories are equal,
  // and what is done to the first of them is done to the next. How many they were is counted when
  // something else happens.
  enum class Step : std::uint8_t { touched, listed };
  struct Run {
    std::uint64_t before = 0;  // a history
    std::uint64_t after = 0;
    RequestNumber request = 0;  // that touches them
    Step step = Step::touched;
    bool is_told = false;     // when they are listed
    std::uint32_t room = 0;   // for so many more; 0: the next is not like it
    std::uint32_t count = 0;  // behind the first one
  };
  bool goes_on(BlockHistory& block, const Run& next);
  void end_run();
  void touch(BlockHistory& block, RequestNumber request);
  void list(BlockHistory& block, bool is_told);
  void count_use(const BlockHistory& before, RequestRecord& now, std::uint32_t blocks);

  static std::uint32_t class_of(BlockGroup group, const RequestRecord& request);
  static float weight_of(const RequestRecord& request);
  void cross_buckets();

  RequestLog log_;
  HazardTable table_;
  // By bucket: the oldest request that has not left it yet.
  std::vector<RequestNumber> inside_;
  std::uint32_t until_rebuild_ = 0;
  Run run_;
  // In which bucket the request lies that last used the blocks which are being found: mostly one
  // for many of them.
  struct Seen {
    RequestNumber request = 0;
    std::uint32_t bucket = 0;
    bool is_known = false;
  } seen_;
};

}  // namespace cairn
