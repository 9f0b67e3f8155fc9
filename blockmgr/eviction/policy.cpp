#include "blockmgr/eviction/policy.hpp"

#include <utility>

#include "base/assert.hpp"
#include "blockmgr/eviction/class_hazard.hpp"
#include "blockmgr/eviction/lru_order.hpp"

namespace cairn {
namespace {

// Evicts in the order of last use, except for hints.
class Lru final : public EvictionPolicy {
 public:
  explicit Lru(const PolicyOptions& options) : capacity_blocks_(options.capacity_blocks) {}
  std::uint32_t lists() const override { return kNextUses; }
  float worth(const BlockHistory& block, std::uint32_t expected_blocks) const override {
    const auto age_s = static_cast<std::uint16_t>(unix_s_ - block.listed_s);
    return lru_worth({.next_use = static_cast<NextUse>(block.list),
                      .age_ms = std::int64_t{age_s} * 1000,
                      .expected_blocks = expected_blocks,
                      .capacity_blocks = capacity_blocks_});
  }
  std::uint64_t memory_bytes() const override { return sizeof(*this); }

 private:
  RequestNumber begin_request(const RequestStart& start) override {
    unix_s_ = start.unix_ms / 1000;
    return ++last_;
  }
  std::uint32_t touch(BlockHistory& block, RequestNumber request) override {
    block.request = request;
    block.uses = 1;
    return kAnyNumber;
  }
  std::uint32_t list(BlockHistory& block, NextUse hinted) override {
    block.list = static_cast<std::uint32_t>(hinted) & 63U;
    block.listed_s = static_cast<std::uint16_t>(unix_s_);
    return kAnyNumber;
  }

  const std::uint32_t capacity_blocks_;
  RequestNumber last_ = 0;
  std::int64_t unix_s_ = 0;
};

}  // namespace

EvictionPolicy::Run EvictionPolicy::run(std::uint64_t before, const BlockHistory& after,
                                        std::uint32_t why, std::uint32_t most) {
  return {.of = most > 0 ? before : Run::kNoHistory,
          .before = before,
          .after = std::bit_cast<std::uint64_t>(after),
          .why = why,
          .left = most,
          .most = most};
}

bool EvictionPolicy::touch_first(BlockHistory& block, RequestNumber request) {
  if (block.is_known() && block.request == request) return false;
  end_runs();
  const auto before = std::bit_cast<std::uint64_t>(block);
  const std::uint32_t most = touch(block, request);
  block.is_hub = false;
  touching_ = run(before, block, request, most);
  return true;
}

void EvictionPolicy::list_first(BlockHistory& block, NextUse hinted) {
  end_runs();
  const auto before = std::bit_cast<std::uint64_t>(block);
  const std::uint32_t most = list(block, hinted);
  listing_ = run(before, block, static_cast<std::uint32_t>(hinted), most);
}

void EvictionPolicy::end_runs() {
  const Run touching = std::exchange(touching_, {});
  const Run listing = std::exchange(listing_, {});
  if (touching.most > touching.left) {
    touched_more(std::bit_cast<BlockHistory>(touching.before), touching.why,
                 touching.most - touching.left);
  }
  if (listing.most > listing.left && listing.before != listing.after) {
    listed_more(std::bit_cast<BlockHistory>(listing.after), listing.most - listing.left);
  }
}

std::string_view to_string(EvictionKind kind) {
  switch (kind) {
    case EvictionKind::lru:
      return "lru";
    case EvictionKind::class_hazard:
      return "class_hazard";
  }
  invariant_broken("EvictionKind", "a value outside the enumeration");
}

std::optional<EvictionKind> eviction_kind_from(std::string_view word) {
  for (const EvictionKind kind : {EvictionKind::lru, EvictionKind::class_hazard}) {
    if (word == to_string(kind)) return kind;
  }
  return std::nullopt;
}

std::unique_ptr<EvictionPolicy> make_eviction_policy(const PolicyOptions& options) {
  switch (options.eviction) {
    case EvictionKind::lru:
      return std::make_unique<Lru>(options);
    case EvictionKind::class_hazard:
      return std::make_unique<ClassHazard>(options);
  }
  invariant_broken("EvictionKind", "a value outside the enumeration");
}

}  // namespace cairn
