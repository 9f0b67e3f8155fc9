// Movements: what clients ask for. A key is brought once, however many ask for it.
#include <algorithm>
#include <limits>

#include "blockmgr/cache/cache_core.hpp"

namespace cairn {
namespace {

// Where to read from: pinned memory reaches every tier directly; then the device; disk last.
std::optional<SlotRef> best_source(const Entry& entry, Tier to) {
  for (Tier tier : {Tier::pinned, Tier::device, Tier::disk}) {
    const SlotNumber slot = entry.slots[index_of(tier)];
    if (tier != to && slot != kNoSlot) return SlotRef(tier, slot);
  }
  return std::nullopt;
}

// Sources of a tier next to each other, in the order of the keys: jobs read from one tier.
void group_by_source(TransferBatch& batch) {
  std::vector<std::size_t> order(batch.items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return batch.items[a].source.tier() < batch.items[b].source.tier();
  });
  std::vector<TransferBatch::Item> items;
  std::vector<BlockKey> keys;
  for (std::size_t i : order) {
    items.push_back(batch.items[i]);
    keys.push_back(batch.keys[i]);
  }
  batch.items = std::move(items);
  batch.keys = std::move(keys);
}

// What is waited for is as urgent as who waits: the leader's jobs come no later than the follower's
// would, until this key has come.
void follow(Section& section, SingleFlight::Expected& expected, SingleFlight::Follower follower) {
  TransferBatch& leader = *expected.leader;
  const std::int32_t before = leader.urgency();
  ++leader.followed[follower.batch->priority];
  expected.followers.push_back(std::move(follower));
  const std::int32_t urgency = leader.urgency();
  if (urgency == before) return;
  for (const auto& [first, id] : leader.ids) {
    section.after([services = section.core().services, id = id, urgency] {
      services->engine.raise(id, urgency);
    });
  }
}

void end_following(TransferBatch& leader, const TransferBatch& follower) {
  const auto at = leader.followed.find(follower.priority);
  if (--at->second == 0) leader.followed.erase(at);
}

}  // namespace

SingleFlight::Expected* Movements::on_its_way(const BlockKey& key, Tier to) {
  return flights_.find({key, to});
}

SingleFlight::Expected& Movements::add_item(Section& section, const Batch& batch,
                                            const BlockKey& key, SlotRef source) {
  section->store.pin(source);
  batch->items.push_back({.source = source, .destination = source});
  batch->keys.push_back(key);
  return flights_.expect({key, batch->to}, batch);
}

void Movements::add_key(Section& section, const Batch& batch, const Wanted& wanted) {
  const SlotRef source = *best_source(section->store.entry(wanted.entry), batch->to);
  if (wanted.expected == nullptr) {
    add_item(section, batch, section->store.key(wanted.entry), source);
    return;
  }
  follow(section, *wanted.expected, {.batch = batch, .from = source.tier()});
  ++batch->following;
}

void Movements::launch(Section& section, const Batch& batch, std::uint64_t already_there) {
  section.services().transfers.add(*batch->transfer,
                                   TransferTable::Arrived{.blocks = already_there});
  transfers_.emplace(*batch->transfer, batch);
  if (!batch->items.empty()) return bring(section, batch);
  if (batch->ended_all()) finish(section, batch);
}

void Movements::cancel(Section& section, TransferId id) {
  const auto at = transfers_.find(id);
  if (at == transfers_.end()) return;
  const Batch batch = at->second;
  cancel_batch(section, batch);
}

void Movements::cancel_all(Section& section) {
  const auto open = transfers_;  // ends remove themselves
  for (const auto& [id, batch] : open) cancel_batch(section, batch);
}

void Movements::bring(Section& section, const Batch& batch) {
  group_by_source(*batch);
  SlotRequest request{.id = section->slots.next_id(),
                      .count = static_cast<std::uint32_t>(batch->items.size())};
  batch->request = request.id;
  request.granted = [this, batch](Section& inner, Result<std::span<const SlotRef>> slots) {
    if (slots) return start(inner, batch, *slots);
    batch->request = 0;
    batch->next = batch->items.size();
    for (auto item = batch->items.rbegin(); item != batch->items.rend(); ++item) {
      inner->store.unpin(item->source);
    }
    const Error why = slots.error();
    const bool cancelled = why.code == ErrorCode::cancelled;
    for (std::size_t i = 0; i < batch->keys.size(); ++i) {
      ++(cancelled ? batch->skipped : batch->failed);
      if (!cancelled && batch->transfer) {
        inner.services().transfers.add(*batch->transfer,
                                       TransferStatus::Failure{batch->keys[i], why});
      }
    }
    if (batch->ended_all()) finish(inner, batch);
    // One that asked for too much does not speak for those who want less: key by key.
    const bool may_try_again = batch->transfer || batch->items.size() > 1;
    for (std::size_t i = 0; i < batch->keys.size(); ++i) {
      Batch again;
      tell_followers(inner, *batch, i, may_try_again ? nullptr : &why, again);
      if (again) bring(inner, again);
    }
  };
  if (auto asked = section->slots.ask(section, batch->to, std::move(request)); !asked) {
    request.granted(section, std::move(asked).error());
  }
}

void Movements::tell_followers(Section& section, TransferBatch& batch, std::size_t index,
                               const Error* error, Batch& again) {
  if (batch.purpose != TransferBatch::Purpose::transfer) return;
  const BlockKey& key = batch.keys[index];
  SingleFlight::Expected* next = nullptr;
  for (SingleFlight::Follower& follower : flights_.end({key, batch.to})) {
    const Batch& told = follower.batch;
    end_following(batch, *told);
    if (told->cancelled) continue;
    const EntryNumber entry = section->dropped ? kNoEntry : section->store.find(key, section.now());
    const SlotNumber copy =
        entry == kNoEntry ? kNoSlot : section->store.entry(entry).slots[index_of(batch.to)];
    if (copy != kNoSlot) {
      hold_for_lease(section, *told, {batch.to, copy});
      if (told->drop_source) {
        drop_moved_copies(section, {.key = entry, .from = follower.from, .to = batch.to});
      }
      if (told->transfer) {
        section.services().transfers.add(*told->transfer, TransferTable::Arrived{.blocks = 1});
      }
    } else if (entry == kNoEntry || error != nullptr) {
      ++told->failed;
      if (told->transfer) {
        section.services().transfers.add(
            *told->transfer, TransferStatus::Failure{key, error ? *error : key_vanished()});
      }
    } else {
      if (!again) {
        again = std::make_shared<TransferBatch>();
        again->to = batch.to;
        again->priority = std::numeric_limits<std::int32_t>::min();  // its followers have one
      }
      if (next == nullptr) {
        next = &add_item(section, again, key, *best_source(section->store.entry(entry), batch.to));
      }
      follow(section, *next, std::move(follower));
      continue;
    }
    --told->following;
    if (told->ended_all()) finish(section, told);
  }
}

}  // namespace cairn
