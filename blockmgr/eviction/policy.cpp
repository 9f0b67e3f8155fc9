#include "blockmgr/eviction/policy.hpp"

#include "base/assert.hpp"
#include "blockmgr/eviction/class_hazard.hpp"
#include "blockmgr/eviction/lrfu.hpp"

namespace cairn {
namespace {

// One list: the order of uses is that of eviction.
class Lru final : public EvictionPolicy {
 public:
  std::uint32_t lists() const override { return 1; }
  RequestNumber begin(const RequestStart& /*start*/) override { return ++last_; }
  void touched(BlockHistory& block, RequestNumber request) override {
    block.request = request;
    block.uses = 1;
  }
  void ended(RequestNumber /*request*/, const RequestEnd& /*end*/) override {}
  void listed(BlockHistory& block) override { block.list = 0; }
  float worth(const BlockHistory& /*block*/) const override { return 0; }
  std::uint64_t memory_bytes() const override { return sizeof(*this); }

 private:
  RequestNumber last_ = 0;
};

}  // namespace

std::string_view to_string(EvictionKind kind) {
  switch (kind) {
    case EvictionKind::lru:
      return "lru";
    case EvictionKind::class_hazard:
      return "class_hazard";
    case EvictionKind::lrfu:
      return "lrfu";
  }
  invariant_broken("EvictionKind", "a value outside the enumeration");
}

std::optional<EvictionKind> eviction_kind_from(std::string_view word) {
  for (const EvictionKind kind :
       {EvictionKind::lru, EvictionKind::class_hazard, EvictionKind::lrfu}) {
    if (word == to_string(kind)) return kind;
  }
  return std::nullopt;
}

std::unique_ptr<EvictionPolicy> make_eviction_policy(const PolicyOptions& options) {
  switch (options.eviction) {
    case EvictionKind::lru:
      return std::make_unique<Lru>();
    case EvictionKind::class_hazard:
      return std::make_unique<ClassHazard>(options);
    case EvictionKind::lrfu:
      return std::make_unique<Lrfu>(options);
  }
  invariant_broken("EvictionKind", "a value outside the enumeration");
}

}  // namespace cairn
