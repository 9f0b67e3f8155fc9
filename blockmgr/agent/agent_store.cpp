#include <numeric>
#include <unordered_set>
#include <utility>

#include "base/assert.hpp"
#include "base/hex.hpp"
#include "blockmgr/agent/agent_copy.hpp"
#include "blockmgr/cache/intake.hpp"

namespace cairn {
// What is there already is held to the end; the rest is an intake, whose bytes are the agent's.
class AgentStore final : public AgentCopy {
 public:
  AgentStore(const AgentStoreRequest& request, AgentCounters::Direction& counts,
             std::shared_ptr<AgentCounters> counters)
      : AgentCopy(request, counts, std::move(counters)),
        cache_(request.cache),
        parents_(request.parents),
        slots_{.tier = request.tier.value_or(request.cache->highest_tier()),
               .quota = request.quota,
               .pins = request.pins,
               .holder = request.holder},
        intake_(cache_, core_) {}
  ~AgentStore() override { let_go(); }

  static Result<TransferId> start(AgentStoreRequest request,
                                  std::shared_ptr<AgentCounters> counters);

 private:
  Result<> hold_present();
  void allocate(const std::shared_ptr<AgentStore>& self);
  void copy(const std::shared_ptr<AgentStore>& self);
  void copied(const std::shared_ptr<AgentStore>& self,
              const std::vector<LayerCopy::Failure>& failures);
  void let_go();
  void ended();

  const std::shared_ptr<Cache> cache_;
  const std::vector<std::optional<BlockKey>> parents_;
  const Intake::Slots slots_;
  Cache::Held present_;  // what is there already, held to the end
  Intake intake_;
  std::vector<std::size_t> numbers_;  // of the intake's items among the keys
};

Result<TransferId> AgentStore::start(AgentStoreRequest request,
                                     std::shared_ptr<AgentCounters> counters) {
  AgentCounters& counts = *counters;
  auto store = std::make_shared<AgentStore>(request, counts.stores, std::move(counters));
  CAIRN_TRY(store->check());
  CAIRN_TRY(store->core_->check_tier(store->slots_.tier));
  CAIRN_TRY(store->take_on(store));
  CAIRN_TRY(store->hold_present());
  CAIRN_TRY(store->open());
  const TransferId id = store->id();
  store->allocate(store);
  return id;
}

// Keys that are there are left out.
Result<> AgentStore::hold_present() {
  const std::vector<KeyView> views(keys_.begin(), keys_.end());
  std::unordered_set<std::string_view> seen;
  for (const KeyView& key : views) {
    if (seen.insert(key.as_text()).second) continue;
    return Error{ErrorCode::state_conflict, "keys names key " + to_hex(key.bytes()) + " twice"};
  }
  auto held = cache_->hold(
      views,
      {.lease_ms = core_->options().max_lease_ms, .holder = slots_.holder, .pins = slots_.pins});
  if (!held) return std::move(held).error();
  present_ = std::move(*held);
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (present_.blocks[i]) continue;
    numbers_.push_back(i);
    intake_.add({.handle = {}, .key = keys_[i], .parent = parents_[i]});
  }
  return {};
}

void AgentStore::allocate(const std::shared_ptr<AgentStore>& self) {
  if (numbers_.empty()) return ended();
  intake_.allocate(slots_, [self](bool granted) {
    if (!granted) return self->ended();
    self->copy(self);
  });
}

void AgentStore::copy(const std::shared_ptr<AgentStore>& self) {
  LayerCopy::Request request{
      .core = core_, .source = &agent_->layout(), .destination = &core_->layout(slots_.tier)};
  for (std::size_t i = 0; i < intake_.granted(); ++i) {
    request.pairs.push_back({blocks_[numbers_[i]], intake_.items()[i].slot().slot()});
  }
  request.may_go_on = [self] { return self->agent_->check_whole(); };
  request.progressed = [self](std::uint64_t layers) { self->progressed(layers); };
  request.ended = [self](const std::vector<LayerCopy::Failure>& failures) {
    self->copied(self, failures);
  };
  follow(LayerCopy::start(std::move(request)));
}

void AgentStore::copied(const std::shared_ptr<AgentStore>& self,
                        const std::vector<LayerCopy::Failure>& failures) {
  for (const LayerCopy::Failure& failure : failures) intake_.fail(failure.pair, failure.error);
  // What was read where memory had gone is zeros.
  if (auto whole = agent_->check_whole(); !whole) intake_.fail_all(whole.error());
  std::vector<std::size_t> all(intake_.granted());
  std::iota(all.begin(), all.end(), std::size_t{0});
  CAIRN_ASSERT(intake_.copied(all), "they are one copy");
  intake_.commit([self] { self->ended(); });
}

void AgentStore::let_go() {
  intake_.release();
  if (present_.lease) static_cast<void>(cache_->release(*present_.lease, {}).has_value());
  present_.lease.reset();
}

// Who is told of the end finds nothing held for it.
void AgentStore::ended() {
  let_go();
  End end{.done_blocks = keys_.size()};
  for (const Intake::Item& item : intake_.items()) {
    if (item.error) {
      end.failures.push_back({item.block.key, *item.error});
      --end.done_blocks;
    } else if (!item.duplicate) {
      ++end.copied_blocks;
    }
  }
  finish(std::move(end));
}

Result<TransferId> store_from_agent(AgentStoreRequest request,
                                    std::shared_ptr<AgentCounters> counters) {
  return AgentStore::start(std::move(request), std::move(counters));
}

}  // namespace cairn
