#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/hex.hpp"
#include "blockmgr/agent/agent_copy.hpp"
#include "blockmgr/cache/block_pieces.hpp"

namespace cairn {
namespace {

// Slots under one hold of the lock: some 300 ns each to check and pin, or to tell as written.
constexpr std::size_t kSlotsAtOnce = 48;

}  // namespace

// The slots are held by the lease under which they were allocated, and once more while bytes are on
// their way: a lease that ends early frees no slot that is still being written. They are committed
// only once the copy has ended.
class AgentStore final : public AgentCopy {
 public:
  AgentStore(const AgentStoreRequest& request, AgentCounters::Direction& counts,
             std::shared_ptr<AgentCounters> counters)
      : AgentCopy(request, counts, std::move(counters)),
        cache_(request.cache),
        parents_(request.parents),
        tier_(request.tier.value_or(request.cache->highest_tier())),
        quota_(request.quota),
        holder_(request.holder) {}
  ~AgentStore() override { let_go(); }

  static Result<TransferId> start(AgentStoreRequest request,
                                  std::shared_ptr<AgentCounters> counters);

 private:
  struct Item {
    std::size_t number = 0;  // of the keys
    CommitBlock block;
    std::optional<Error> error = {};
  };

  Result<> hold_present();
  void allocate(const std::shared_ptr<AgentStore>& self);
  void allocated(const std::shared_ptr<AgentStore>& self, Result<Allocation> allocation);
  Result<> pin_slots();
  void copied(const std::shared_ptr<AgentStore>& self,
              const std::vector<LayerCopy::Failure>& failures);
  void commit(const std::shared_ptr<AgentStore>& self);
  void committed(Result<std::vector<CommitStatus>> statuses);
  void fail_all(const Error& error);
  void let_go();
  void ended();
  static SlotRef slot_of(const Item& item) {
    return {item.block.handle.tier, static_cast<SlotNumber>(item.block.handle.slot)};
  }

  const std::shared_ptr<Cache> cache_;
  const std::vector<std::optional<BlockKey>> parents_;
  const Tier tier_;
  const std::shared_ptr<BlockQuota> quota_;
  const LeaseHolder holder_;
  Cache::Held present_;  // what is there already, held to the end
  std::vector<Item> items_;
  std::optional<LeaseId> lease_;
  std::vector<std::size_t> commits_;  // of items_
  std::uint64_t copied_blocks_ = 0;
};

Result<TransferId> AgentStore::start(AgentStoreRequest request,
                                     std::shared_ptr<AgentCounters> counters) {
  AgentCounters& counts = *counters;
  auto store = std::make_shared<AgentStore>(request, counts.stores, std::move(counters));
  CAIRN_TRY(store->check());
  CAIRN_TRY(store->core_->check_tier(store->tier_));
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
    const auto bytes = key.bytes();
    if (seen.insert({reinterpret_cast<const char*>(bytes.data()), bytes.size()}).second) continue;
    return Error{ErrorCode::state_conflict, "keys names key " + to_hex(bytes) + " twice"};
  }
  auto held = cache_->hold(views, {.lease_ms = core_->options().max_lease_ms, .holder = holder_});
  if (!held) return std::move(held).error();
  present_ = std::move(*held);
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (present_.blocks[i]) continue;
    items_.push_back(
        {.number = i, .block = {.handle = {}, .key = keys_[i], .parent = parents_[i]}});
  }
  return {};
}

void AgentStore::allocate(const std::shared_ptr<AgentStore>& self) {
  if (items_.empty()) return ended();
  cache_->allocate(
      {.count = static_cast<std::uint32_t>(items_.size()),
       .tier = tier_,
       .lease_ms = core_->options().max_lease_ms,
       .quota = quota_,
       .holder = holder_},
      [self](Result<Allocation> allocation) { self->allocated(self, std::move(allocation)); });
}

void AgentStore::allocated(const std::shared_ptr<AgentStore>& self, Result<Allocation> allocation) {
  if (!allocation) {
    fail_all(allocation.error());
    return ended();
  }
  lease_ = allocation->lease;
  for (std::size_t i = 0; i < items_.size(); ++i) items_[i].block.handle = allocation->blocks[i];
  if (is_cancelled()) {
    fail_all({ErrorCode::cancelled, "the transfer was cancelled"});
    return ended();
  }
  if (auto pinned = pin_slots(); !pinned) {
    fail_all(pinned.error());
    return ended();
  }
  LayerCopy::Request request{
      .core = core_, .source = &agent_->layout(), .destination = &core_->layout(tier_)};
  for (const Item& item : items_) {
    request.pairs.push_back({blocks_[item.number], slot_of(item).slot()});
  }
  request.may_go_on = [self] { return self->agent_->check_whole(); };
  request.progressed = [self](std::uint64_t layers) { self->progressed(layers); };
  request.ended = [self](const std::vector<LayerCopy::Failure>& failures) {
    self->copied(self, failures);
  };
  follow(LayerCopy::start(std::move(request)));
}

// What the lease lost meanwhile is somebody else's; what is pinned stays.
Result<> AgentStore::pin_slots() {
  Section section(*core_, LockUse::transfer);
  const auto pin = [&](std::size_t i) -> Result<> {
    if (i % kSlotsAtOnce == 0 && i > 0) section.give_way();
    auto lease = section->leases.live(section, *lease_);
    if (!lease) return std::move(lease).error();
    auto at = section->leases.uncommitted(section, *lease, items_[i].block.handle);
    if (!at) return std::move(at).error();
    section->store.pin(*at);
    return {};
  };
  for (std::size_t i = 0; i < items_.size(); ++i) {
    auto pinned = pin(i);
    if (pinned) continue;
    while (i-- > 0) section->store.unpin(slot_of(items_[i]));
    return pinned;
  }
  return {};
}

void AgentStore::copied(const std::shared_ptr<AgentStore>& self,
                        const std::vector<LayerCopy::Failure>& failures) {
  for (const LayerCopy::Failure& failure : failures) items_[failure.pair].error = failure.error;
  // What was read where memory had gone is zeros.
  if (auto whole = agent_->check_whole(); !whole) fail_all(whole.error());
  {
    Section section(*core_, LockUse::transfer);
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (i % kSlotsAtOnce == 0 && i > 0) section.give_way();
      Item& item = items_[i];
      const SlotRef at = slot_of(item);
      if (section->store.record(at).gone && !item.error) {
        item.error = Error{ErrorCode::lease_expired, "the lease ended during the copy"};
      }
      if (!item.error) {
        const auto all = piece_range(core_->config.shape, std::nullopt);
        section->writes.begin(at, all.count).set_written(all);
      }
      section->store.unpin(at);
    }
  }
  commit(self);
}

void AgentStore::commit(const std::shared_ptr<AgentStore>& self) {
  std::vector<CommitBlock> blocks;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].error) continue;
    commits_.push_back(i);
    blocks.push_back(items_[i].block);
  }
  if (blocks.empty()) return ended();
  cache_->commit(*lease_, std::move(blocks), [self](Result<std::vector<CommitStatus>> statuses) {
    self->committed(std::move(statuses));
  });
}

void AgentStore::committed(Result<std::vector<CommitStatus>> statuses) {
  for (std::size_t i = 0; i < commits_.size(); ++i) {
    if (!statuses) {
      items_[commits_[i]].error = statuses.error();
    } else if ((*statuses)[i] == CommitStatus::committed) {
      ++copied_blocks_;
    }
  }
  ended();
}

void AgentStore::fail_all(const Error& error) {
  for (Item& item : items_) item.error = error;
}

void AgentStore::let_go() {
  for (std::optional<LeaseId>* lease : {&lease_, &present_.lease}) {
    if (*lease) static_cast<void>(cache_->release(**lease, {}).has_value());
    lease->reset();
  }
}

// Who is told of the end finds nothing held for it.
void AgentStore::ended() {
  let_go();
  End end{.done_blocks = keys_.size(), .copied_blocks = copied_blocks_};
  for (const Item& item : items_) {
    if (!item.error) continue;
    end.failures.push_back({item.block.key, *item.error});
    --end.done_blocks;
  }
  finish(std::move(end));
}

Result<TransferId> store_from_agent(AgentStoreRequest request,
                                    std::shared_ptr<AgentCounters> counters) {
  return AgentStore::start(std::move(request), std::move(counters));
}

}  // namespace cairn
