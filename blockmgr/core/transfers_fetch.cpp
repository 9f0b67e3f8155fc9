// Transfers for clients. A key is brought once, however many clients request it.
#include <algorithm>
#include <limits>

#include "blockmgr/core/cache_core.hpp"
#include "blockmgr/transfer/best_source.hpp"

namespace cairn {
namespace {

// Keys given up, or pins released, under one hold of the lock: up to 500 ns each.
constexpr std::size_t kLetGoAtOnce = 24;

bool any_request(const SingleFlight::Expected& expected) {
  return std::ranges::any_of(expected.followers, [](const SingleFlight::Follower& follower) {
    return !follower.batch->is_prefetch;
  });
}

// Raises the leader's jobs to the follower's urgency until this key has arrived.
void follow(CacheLock& locked, SingleFlight::Expected& expected, SingleFlight::Follower follower) {
  TransferBatch& leader = *expected.leader;
  const Raise before{.priority = leader.urgency()};
  const bool is_request = !follower.batch->is_prefetch;
  if (leader.is_prefetch && is_request && !any_request(expected)) {
    locked->store.count_prefetched(PrefetchResult::late, 1);
  }
  const bool hurries = is_request && leader.is_prefetch && !leader.is_waited_for;
  if (hurries) leader.is_waited_for = true;
  ++leader.followed[follower.batch->priority];
  expected.followers.push_back(std::move(follower));
  const Raise now{.priority = leader.urgency(),
                  .urgency = hurries ? Urgency::client : Urgency::background};
  if (now.priority == before.priority && !hurries) return;
  for (const auto& [first, id] : leader.ids) {
    locked.after(
        [services = locked.core().services, id = id, now] { services->scheduler.raise(id, now); });
  }
}

void end_following(TransferBatch& leader, const TransferBatch& follower) {
  const auto at = leader.followed.find(follower.priority);
  if (--at->second == 0) leader.followed.erase(at);
}

}  // namespace

void Transfers::group_by_source(TransferBatch& batch) {
  std::vector<std::size_t> order(batch.items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  // Within each tier and KV group, in the order of the keys.
  const auto kind_of = [&](std::size_t i) {
    return std::pair(batch.items[i].source.tier(), batch.keys[i].kv_group());
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return kind_of(a) < kind_of(b); });
  std::vector<TransferBatch::Item> items;
  std::vector<BlockKey> keys;
  for (std::size_t i : order) {
    items.push_back(batch.items[i]);
    keys.push_back(batch.keys[i]);
  }
  batch.items = std::move(items);
  batch.keys = std::move(keys);
}

Transfers::Role Transfers::role_of(CacheLock& locked, const Batch& batch, EntryNumber entry) {
  if (locked->store.entry(entry).slots[index_of(batch->to)] != kNoSlot) return Role::there;
  const SingleFlight::Expected* const expected =
      flights_.find({locked->store.key(entry), batch->to});
  if (expected == nullptr) return Role::missing;
  const bool is_named =
      expected->leader == batch ||
      std::ranges::find(expected->followers, batch, &SingleFlight::Follower::batch) !=
          expected->followers.end();
  return is_named ? Role::named : Role::followed;
}

SingleFlight::Expected& Transfers::add_item(CacheLock& locked, const Batch& batch,
                                            const BlockKey& key, SlotRef source) {
  // A batch that may still be given up must not count as a use.
  if (batch->open) {
    locked->store.pin_in_place(source);
  } else {
    locked->store.pin(source);
  }
  batch->items.push_back({.source = source, .destination = source});
  batch->keys.push_back(key);
  return flights_.expect({key, batch->to}, batch);
}

void Transfers::add_key(CacheLock& locked, const Batch& batch, EntryNumber entry) {
  const Entry& known = locked->store.entry(entry);
  if (const SlotNumber slot = known.slots[index_of(batch->to)]; slot != kNoSlot) {
    batch->kept.push_back({batch->to, slot});
    locked->store.pin_in_place(batch->kept.back());
    return;
  }
  const SlotRef source = *best_source(known, batch->to, batch->to);
  const BlockKey key = locked->store.key(entry);
  if (SingleFlight::Expected* const expected = flights_.find({key, batch->to})) {
    follow(locked, *expected, {.batch = batch, .from = source.tier()});
    ++batch->following;
  } else {
    add_item(locked, batch, key, source);
  }
}

bool Transfers::is_requested(const SingleFlight::Place& place) {
  const SingleFlight::Expected* const expected = flights_.find(place);
  return expected != nullptr && any_request(*expected);
}

void Transfers::use(CacheLock& locked, SlotRef pinned_in_place) {
  locked->store.pin(pinned_in_place);
  locked->store.unpin_in_place(pinned_in_place);
}

void Transfers::launch(CacheLock& locked, const Batch& batch, std::uint64_t already_there) {
  batch->open = false;
  locked.services().transfers.add(*batch->transfer,
                                  TransferTable::Arrived{.blocks = already_there});
  transfers_.emplace(*batch->transfer, batch);
  if (!batch->items.empty()) return ask_for_slots(locked, batch);
  if (batch->ended_all()) finish(locked, batch);
}

void Transfers::give_up(CacheLock& locked, const Batch& batch) {
  batch->cancelled = true;  // batches that it follows no longer inform it
  end_expected(locked, *batch, batch->prefetching_units);
  Batch again;
  for (std::size_t i = batch->items.size(); i-- > 0;) {
    if (i > 0 && i % kLetGoAtOnce == 0) locked.yield();
    locked->store.unpin_in_place(batch->items[i].source);
    notify_followers(locked, *batch, i, nullptr, again);
  }
  for (std::size_t i = batch->kept.size(); i-- > 0;) {
    if (i > 0 && i % kLetGoAtOnce == 0) locked.yield();
    locked->store.unpin_in_place(batch->kept[i]);
  }
  if (again) bring(locked, again);
}

void Transfers::cancel(CacheLock& locked, TransferId id) {
  const auto at = transfers_.find(id);
  if (at == transfers_.end()) return;
  const Batch batch = at->second;
  cancel_batch(locked, batch);
}

void Transfers::cancel_all(CacheLock& locked) {
  const auto open = transfers_;  // batches remove themselves at their end
  for (const auto& [id, batch] : open) cancel_batch(locked, batch);
}

void Transfers::bring(CacheLock& locked, const Batch& batch) {
  group_by_source(*batch);
  ask_for_slots(locked, batch);
}

void Transfers::ask_for_slots(CacheLock& locked, const Batch& batch) {
  SlotRequest request{.id = locked->slots.next_id(),
                      .count = static_cast<std::uint32_t>(batch->items.size())};
  if (!locked.core().config.kv_groups.empty()) {
    for (const BlockKey& key : batch->keys) request.kv_groups.push_back(key.kv_group());
  }
  batch->request = request.id;
  begin(locked, batch);
  request.granted = [this, batch](CacheLock& inner, Result<std::span<const SlotRef>> slots) {
    if (slots) return start(inner, batch, *slots);
    moving_.erase(batch->number);  // its sources are unpinned from now on
    batch->request = 0;
    batch->next = batch->items.size();
    batch->open = true;
    inner.after([core = inner.core().shared_from_this(), batch, why = slots.error()] {
      CacheLock later(*core, LockUse::movement);
      later->transfers.refused(later, batch, why);
    });
  };
  if (auto asked = locked->slots.ask(locked, batch->to, std::move(request)); !asked) {
    request.granted(locked, std::move(asked).error());
  }
}

void Transfers::refused(CacheLock& locked, const Batch& batch, const Error& why) {
  const bool cancelled = why.code == ErrorCode::cancelled;
  // A batch that asked for too much does not decide for followers that want less: they try key by
  // key.
  const bool may_try_again = batch->transfer || batch->items.size() > 1;
  for (std::size_t i = batch->items.size(); i-- > 0;) {
    if (i > 0 && i % kLetGoAtOnce == 0) locked.yield();
    locked->store.unpin(batch->items[i].source);
  }
  for (std::size_t i = 0; i < batch->keys.size(); ++i) {
    if (i > 0 && i % kLetGoAtOnce == 0) locked.yield();
    ++(cancelled ? batch->skipped : batch->failed);
    if (cancelled && batch->is_prefetch && !is_requested({batch->keys[i], batch->to})) {
      locked->store.count_prefetched(PrefetchResult::late, 1);
    }
    if (!cancelled && batch->transfer) {
      locked.services().transfers.add(*batch->transfer,
                                      TransferStatus::Failure{batch->keys[i], why});
    }
    Batch again;
    notify_followers(locked, *batch, i, may_try_again ? nullptr : &why, again);
    if (again) bring(locked, again);
  }
  batch->open = false;
  if (batch->ended_all()) finish(locked, batch);
}

// Without the caller's hold of the lock: there may be a million blocks.
void Transfers::let_kept_go(CacheLock& locked, TransferBatch& batch) {
  if (batch.kept.empty()) return;
  locked.after([core = locked.core().shared_from_this(), kept = std::move(batch.kept)] {
    CacheLock later(*core, LockUse::movement);
    for (std::size_t i = kept.size(); i-- > 0;) {
      if (i > 0 && i % kLetGoAtOnce == 0) later.yield();
      later->store.unpin(kept[i]);
    }
  });
}

void Transfers::notify_followers(CacheLock& locked, TransferBatch& batch, std::size_t index,
                                 const Error* error, Batch& again) {
  if (batch.purpose != TransferBatch::Purpose::transfer) return;
  const BlockKey& key = batch.keys[index];
  SingleFlight::Expected* next = nullptr;
  for (SingleFlight::Follower& follower : flights_.end({key, batch.to})) {
    const Batch& waiting = follower.batch;
    end_following(batch, *waiting);
    if (waiting->cancelled) continue;
    const EntryNumber entry = locked->dropped ? kNoEntry : locked->store.find(key, locked.now());
    const SlotNumber copy =
        entry == kNoEntry ? kNoSlot : locked->store.entry(entry).slots[index_of(batch.to)];
    if (copy != kNoSlot) {
      hold_for_lease(locked, *waiting, {batch.to, copy});
      if (waiting->drop_source) {
        drop_moved_copies(locked, {.key = entry, .from = follower.from, .to = batch.to});
      }
      if (waiting->transfer) {
        locked.services().transfers.add(*waiting->transfer, TransferTable::Arrived{.blocks = 1});
      }
    } else if (entry == kNoEntry || error != nullptr) {
      ++waiting->failed;
      if (waiting->transfer) {
        locked.services().transfers.add(
            *waiting->transfer, TransferStatus::Failure{key, error ? *error : key_vanished()});
      }
    } else {
      if (!again) {
        again = std::make_shared<TransferBatch>();
        again->to = batch.to;
        again->priority = std::numeric_limits<std::int32_t>::min();  // its followers have one
      }
      if (next == nullptr) {
        next = &add_item(locked, again, key,
                         *best_source(locked->store.entry(entry), batch.to, batch.to));
      }
      follow(locked, *next, std::move(follower));
      continue;
    }
    --waiting->following;
    if (waiting->ended_all()) finish(locked, waiting);
  }
}

}  // namespace cairn
