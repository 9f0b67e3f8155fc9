#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/assert.hpp"
#include "base/hex.hpp"
#include "blockmgr/cache/ingest.hpp"
#include "blockmgr/engine_memory/engine_copy.hpp"

namespace cairn {
// Holds blocks that are already stored until the end, and copies the others from the agent.
class EngineStore final : public EngineCopy {
 public:
  EngineStore(const EngineStoreRequest& request, EngineMemoryCounters::Direction& counts,
              std::shared_ptr<EngineMemoryCounters> counters)
      : EngineCopy(request, counts, std::move(counters)),
        tier_(request.tier.value_or(request.cache->highest_tier())),
        ingest_(request.cache, {.holder = request.holder,
                                .quota = request.quota,
                                .pins = request.pins,
                                .shard = request.shard}) {
    ingest_.reserve(keys_.size());
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      ingest_.add({.handle = {}, .key = keys_[i], .parent = request.parents[i]});
    }
  }

  static Result<TransferId> start(EngineStoreRequest request,
                                  std::shared_ptr<EngineMemoryCounters> counters);

 private:
  Result<> check_names() const;
  void allocate(const std::shared_ptr<EngineStore>& self);
  void copy(const std::shared_ptr<EngineStore>& self);
  void copied(const std::shared_ptr<EngineStore>& self,
              const std::vector<LayerCopy::Failure>& failures);
  void ended();

  const Tier tier_;
  Ingest ingest_;  // in the order of the keys
};

Result<TransferId> EngineStore::start(EngineStoreRequest request,
                                      std::shared_ptr<EngineMemoryCounters> counters) {
  EngineMemoryCounters& counts = *counters;
  auto store = std::make_shared<EngineStore>(request, counts.stores, std::move(counters));
  CAIRN_TRY(store->check());
  CAIRN_TRY(store->core_->check_tier(store->tier_));
  if (request.shard && store->tier_ == Tier::disk) {
    return Error{ErrorCode::impossible,
                 "tier is disk, which takes whole blocks from an agent, no shards of them"};
  }
  CAIRN_TRY(store->take_on(store));
  CAIRN_TRY(store->check_names());
  CAIRN_TRY(store->ingest_.hold_present());
  CAIRN_TRY(store->open());
  const TransferId id = store->id();
  store->allocate(store);
  return id;
}

Result<> EngineStore::check_names() const {
  std::unordered_set<std::string_view> seen;
  for (const BlockKey& key : keys_) {
    if (seen.insert(key.view().as_text()).second) continue;
    return Error{ErrorCode::state_conflict,
                 "keys names key " + to_hex(key.view().bytes()) + " twice"};
  }
  return {};
}

void EngineStore::allocate(const std::shared_ptr<EngineStore>& self) {
  const bool all_there = std::ranges::all_of(
      ingest_.items(), [](const Ingest::Item& item) { return Ingest::is_there(item.state); });
  if (all_there) return ended();
  ingest_.allocate({.tier = tier_, .room = Ingest::Room::some, .filled = Ingest::Filled::by_copies},
                   [self](const Result<>& granted) {
                     if (!granted || self->ingest_.granted().empty()) return self->ended();
                     self->copy(self);
                   });
}

void EngineStore::copy(const std::shared_ptr<EngineStore>& self) {
  LayerCopy::Request request{
      .core = core_, .source = &memory_->layout(), .destination = &blocks_in(tier_)};
  for (const std::size_t i : ingest_.granted()) {
    request.pairs.push_back({blocks_[i], ingest_.items()[i].slot().slot()});
  }
  request.may_go_on = [self] { return self->memory_->check_whole(); };
  request.progressed = [self](std::uint64_t layers) { self->progressed(layers); };
  request.ended = [self](const std::vector<LayerCopy::Failure>& failures) {
    self->copied(self, failures);
  };
  follow(LayerCopy::start(std::move(request)));
}

void EngineStore::copied(const std::shared_ptr<EngineStore>& self,
                         const std::vector<LayerCopy::Failure>& failures) {
  for (const LayerCopy::Failure& failure : failures) {
    ingest_.fail(ingest_.granted()[failure.pair], failure.error);
  }
  // Bytes read from a truncated file are zeros.
  if (auto whole = memory_->check_whole(); !whole) ingest_.fail_all(whole.error());
  CAIRN_ASSERT(ingest_.copied(ingest_.granted()), "they are one copy");
  ingest_.commit(Ingest::Then::hold, [self](const Result<>&) { self->ended(); });
}

// Releases all slots before it reports the end.
void EngineStore::ended() {
  ingest_.release();
  End end{.done_blocks = keys_.size()};
  for (const Ingest::Item& item : ingest_.items()) {
    if (item.error) {
      end.failures.push_back({item.block.key, *item.error});
      --end.done_blocks;
    } else if (item.state == Ingest::State::committed || item.state == Ingest::State::pending) {
      ++end.copied_blocks;
    }
  }
  finish(std::move(end));
}

Result<TransferId> store_from_engine(EngineStoreRequest request,
                                     std::shared_ptr<EngineMemoryCounters> counters) {
  return EngineStore::start(std::move(request), std::move(counters));
}

}  // namespace cairn
