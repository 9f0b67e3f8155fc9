// Transfers for clients. A key is brought once, however many clients request it.
#include <algorithm>
#include <limits>

#include "blockmgr/cache/best_source.hpp"
#include "blockmgr/cache/cache_core.hpp"

namespace cairn {
namespace {

// Keys given up, or pins released, under one hold of the lock: up to 500 ns each.
constexpr std::size_t kLetGoAtOnce = 24;

// Raises the leader's jobs to the follower's urgency until this key has arrived.
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

void Movements::group_by_source(TransferBatch& batch) {
  std::vector<std::size_t> order(batch.items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  // Within each tier, in the order of the keys.
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

Movements::Role Movements::role_of(Section& section, const Batch& batch, EntryNumber entry) {
  if (section->store.entry(entry).slots[index_of(batch->to)] != kNoSlot) return Role::there;
  const SingleFlight::Expected* const expected =
      flights_.find({section->store.key(entry), batch->to});
  if (expected == nullptr) return Role::missing;
  const bool is_named =
      expected->leader == batch ||
      std::ranges::find(expected->followers, batch, &SingleFlight::Follower::batch) !=
          expected->followers.end();
  return is_named ? Role::named : Role::followed;
}

SingleFlight::Expected& Movements::add_item(Section& section, const Batch& batch,
                                            const BlockKey& key, SlotRef source) {
  // A batch that may still be given up must not count as a use.
  if (batch->open) {
    section->store.pin_in_place(source);
  } else {
    section->store.pin(source);
  }
  batch->items.push_back({.source = source, .destination = source});
  batch->keys.push_back(key);
  return flights_.expect({key, batch->to}, batch);
}

void Movements::add_key(Section& section, const Batch& batch, EntryNumber entry) {
  const Entry& known = section->store.entry(entry);
  if (const SlotNumber slot = known.slots[index_of(batch->to)]; slot != kNoSlot) {
    batch->kept.push_back({batch->to, slot});
    section->store.pin_in_place(batch->kept.back());
    return;
  }
  const SlotRef source = *best_source(known, batch->to, batch->to);
  const BlockKey key = section->store.key(entry);
  if (SingleFlight::Expected* const expected = flights_.find({key, batch->to})) {
    follow(section, *expected, {.batch = batch, .from = source.tier()});
    ++batch->following;
  } else {
    add_item(section, batch, key, source);
  }
}

void Movements::use(Section& section, SlotRef pinned_in_place) {
  section->store.pin(pinned_in_place);
  section->store.unpin_in_place(pinned_in_place);
}

void Movements::launch(Section& section, const Batch& batch, std::uint64_t already_there) {
  batch->open = false;
  section.services().transfers.add(*batch->transfer,
                                   TransferTable::Arrived{.blocks = already_there});
  transfers_.emplace(*batch->transfer, batch);
  if (!batch->items.empty()) return ask_for_slots(section, batch);
  if (batch->ended_all()) finish(section, batch);
}

void Movements::give_up(Section& section, const Batch& batch) {
  batch->cancelled = true;  // batches that it follows no longer inform it
  Batch again;
  for (std::size_t i = batch->items.size(); i-- > 0;) {
    if (i > 0 && i % kLetGoAtOnce == 0) section.give_way();
    section->store.unpin_in_place(batch->items[i].source);
    tell_followers(section, *batch, i, nullptr, again);
  }
  for (std::size_t i = batch->kept.size(); i-- > 0;) {
    if (i > 0 && i % kLetGoAtOnce == 0) section.give_way();
    section->store.unpin_in_place(batch->kept[i]);
  }
  if (again) bring(section, again);
}

void Movements::cancel(Section& section, TransferId id) {
  const auto at = transfers_.find(id);
  if (at == transfers_.end()) return;
  const Batch batch = at->second;
  cancel_batch(section, batch);
}

void Movements::cancel_all(Section& section) {
  const auto open = transfers_;  // batches remove themselves at their end
  for (const auto& [id, batch] : open) cancel_batch(section, batch);
}

void Movements::bring(Section& section, const Batch& batch) {
  group_by_source(*batch);
  ask_for_slots(section, batch);
}

void Movements::ask_for_slots(Section& section, const Batch& batch) {
  SlotRequest request{.id = section->slots.next_id(),
                      .count = static_cast<std::uint32_t>(batch->items.size())};
  batch->request = request.id;
  request.granted = [this, batch](Section& inner, Result<std::span<const SlotRef>> slots) {
    if (slots) return start(inner, batch, *slots);
    batch->request = 0;
    batch->next = batch->items.size();
    batch->open = true;
    inner.after([core = inner.core().shared_from_this(), batch, why = slots.error()] {
      Section later(*core, LockUse::movement);
      later->moves.refused(later, batch, why);
    });
  };
  if (auto asked = section->slots.ask(section, batch->to, std::move(request)); !asked) {
    request.granted(section, std::move(asked).error());
  }
}

void Movements::refused(Section& section, const Batch& batch, const Error& why) {
  const bool cancelled = why.code == ErrorCode::cancelled;
  // A batch that asked for too much does not decide for followers that want less: they try key by
  // key.
  const bool may_try_again = batch->transfer || batch->items.size() > 1;
  for (std::size_t i = batch->items.size(); i-- > 0;) {
    if (i > 0 && i % kLetGoAtOnce == 0) section.give_way();
    section->store.unpin(batch->items[i].source);
  }
  for (std::size_t i = 0; i < batch->keys.size(); ++i) {
    if (i > 0 && i % kLetGoAtOnce == 0) section.give_way();
    ++(cancelled ? batch->skipped : batch->failed);
    if (!cancelled && batch->transfer) {
      section.services().transfers.add(*batch->transfer,
                                       TransferStatus::Failure{batch->keys[i], why});
    }
    Batch again;
    tell_followers(section, *batch, i, may_try_again ? nullptr : &why, again);
    if (again) bring(section, again);
  }
  batch->open = false;
  if (batch->ended_all()) finish(section, batch);
}

// Without the caller's hold of the lock: there may be a million blocks.
void Movements::let_kept_go(Section& section, TransferBatch& batch) {
  if (batch.kept.empty()) return;
  section.after([core = section.core().shared_from_this(), kept = std::move(batch.kept)] {
    Section later(*core, LockUse::movement);
    for (std::size_t i = kept.size(); i-- > 0;) {
      if (i > 0 && i % kLetGoAtOnce == 0) later.give_way();
      later->store.unpin(kept[i]);
    }
  });
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
        next = &add_item(section, again, key,
                         *best_source(section->store.entry(entry), batch.to, batch.to));
      }
      follow(section, *next, std::move(follower));
      continue;
    }
    --told->following;
    if (told->ended_all()) finish(section, told);
  }
}

}  // namespace cairn
