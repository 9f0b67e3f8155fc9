// Batches of copies between tiers. A key gets its new copy only after all bytes have arrived.
#include <algorithm>
#include <string>

#include "base/assert.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Bus and disk reach full speed at tens of MiB per job; the scheduler splits it into parts.
constexpr std::uint64_t kJobBytes = 32ull << 20;
// Per batch: while one job runs, the next is ready.
constexpr std::uint32_t kJobsAtOnce = 2;
// Blocks whose headers are made, or whose copies are added, under one hold of the lock: up to 1.5
// us each if nothing of a block is in the processor's caches.
constexpr std::size_t kStepItems = 8;
// Blocks of batches looked at under one hold of the lock: some 10 ns each, and 100 for one listed.
constexpr std::size_t kLookedAtAtOnce = 256;

}  // namespace

Error key_vanished() {
  return {ErrorCode::unknown_key, "the key disappeared while it was being moved"};
}

bool accuses_source(Tier source, ErrorCode code) {
  if (source == Tier::disk) {
    return code == ErrorCode::io_error || code == ErrorCode::checksum_mismatch;
  }
  return source == Tier::device && code == ErrorCode::device_error;
}

void Transfers::begin(CacheLock& locked, const Batch& batch) {
  batch->number = ++last_batch_;
  batch->began = locked.now();
  moving_.emplace(batch->number, batch);
}

// A cursor holds the number of a batch and of a block in it, which do not change.
PendingList Transfers::pending(CacheLock& locked, const PendingRequest& request) const {
  constexpr int kItemBits = 30;
  static_assert(kMaxSlots <= 1u << kItemBits, "a batch has at most as many blocks as a tier");
  PendingList result;
  const auto age_ms = [&](const TransferBatch& batch) {
    const auto age = locked.now() - batch.began;
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(age).count());
  };
  const std::uint64_t first = request.cursor >> kItemBits;
  std::uint64_t item = request.cursor & ((std::uint64_t{1} << kItemBits) - 1);
  std::size_t looked_at = 0;
  for (auto at = moving_.lower_bound(first); at != moving_.end(); ++at, item = 0) {
    const TransferBatch& batch = *at->second;
    if (batch.number != first) item = 0;
    for (; item < batch.items.size(); ++item) {
      const SlotRecord& source = locked->store.record(batch.items[item].source);
      const bool is_listed = !batch.items[item].ended && !source.gone;
      if (looked_at++ == kLookedAtAtOnce || (is_listed && result.blocks.size() == request.limit)) {
        result.next_cursor = batch.number << kItemBits | item;
        return result;
      }
      if (!is_listed) continue;
      result.blocks.push_back({.key = locked->store.key(source.owner),
                               .from = batch.items[item].source.tier(),
                               .to = batch.to,
                               .age_ms = age_ms(batch)});
    }
  }
  return result;
}

void Transfers::start(CacheLock& locked, const Batch& batch,
                      std::span<const SlotRef> destinations) {
  batch->request = 0;
  for (std::size_t i = 0; i < batch->items.size(); ++i) {
    batch->items[i].destination = destinations[i];
    ++route_of(*batch, batch->items[i].source.tier()).in_flight_blocks;
  }
  if (batch->transfer) locked.services().transfers.begin(*batch->transfer);
  submit_next(locked, batch);
}

namespace {

Urgency who_waits_for(const TransferBatch& batch) {
  switch (batch.purpose) {
    case TransferBatch::Purpose::transfer:
      return batch.is_prefetch && !batch.is_waited_for ? Urgency::prefetch : Urgency::client;
    case TransferBatch::Purpose::offload: {
      const bool makes_room =
          batch.reason == EvictionReason::capacity || batch.reason == EvictionReason::request;
      return makes_room ? Urgency::allocation : Urgency::background;
    }
    case TransferBatch::Purpose::write_through:
      return Urgency::background;
  }
  invariant_broken("Purpose", "a value outside the enumeration");
}

std::uint32_t units_of(CacheLock& locked, const TransferBatch& batch,
                       const TransferBatch::Item& item) {
  return locked->store.pool(batch.to).units_of(locked->store.kv_group(item.source));
}

Raise raise_of(const TransferBatch& batch) {
  return {.priority = batch.urgency(), .urgency = who_waits_for(batch)};
}

}  // namespace

void Transfers::submit_next(CacheLock& locked, const Batch& batch) {
  const std::size_t most = std::max<std::size_t>(1, kJobBytes / locked.core().block_bytes);
  if (batch->cancelled) return;  // the rest is being given up
  while (batch->jobs < kJobsAtOnce && batch->next < batch->items.size()) {
    Items items{.first = batch->next, .count = 1, .urgency = raise_of(*batch)};
    const SlotRef first = batch->items[items.first].source;
    items.kv_group = locked->store.kv_group(first);
    const auto goes_along = [&](SlotRef source) {
      return source.tier() == first.tier() && locked->store.kv_group(source) == items.kv_group;
    };
    while (items.count < most && items.first + items.count < batch->items.size() &&
           goes_along(batch->items[items.first + items.count].source)) {
      ++items.count;
    }
    batch->next += items.count;
    ++batch->jobs;
    locked.after([core = locked.core().shared_from_this(), batch, items] {
      submit_items(*core, batch, items);
    });
  }
}

std::vector<SlotHeader> Transfers::headers_of(CacheCore& core,
                                              std::span<const TransferBatch::Item> items) {
  std::vector<SlotHeader> headers;
  headers.reserve(items.size());
  CacheLock locked(core, LockUse::movement);
  for (const TransferBatch::Item& item : items) {
    if (!headers.empty() && headers.size() % kStepItems == 0) locked.yield();
    headers.push_back(
        header_of_copy(locked, {.source = item.source, .destination = item.destination}));
  }
  return headers;
}

void Transfers::submit_items(CacheCore& core, const Batch& batch, Items items) {
  const Tier from = batch->items[items.first].source.tier();
  TransferJob job;
  if (batch->to == Tier::disk) {
    job.headers = headers_of(core, std::span(batch->items).subspan(items.first, items.count));
  }
  job.source = &core.layout(from, items.kv_group);
  job.destination = &core.layout(batch->to, items.kv_group);
  job.urgency = items.urgency.urgency;
  job.priority = items.urgency.priority;
  job.source_goes = batch->purpose == TransferBatch::Purpose::offload || batch->drop_source;
  for (std::size_t i = items.first; i < items.first + items.count; ++i) {
    const TransferBatch::Item& item = batch->items[i];
    job.pairs.push_back({item.source.slot(), item.destination.slot()});
  }
  core.submit(
      std::move(job),
      [&core, batch, items](const JobOutcome& outcome) {
        if (batch->to == Tier::disk) core.options().failpoint("move.written");
        CacheLock locked(core, LockUse::movement);
        locked->transfers.items_ended(locked, batch, items, outcome);
      },
      [&core, batch, items](JobId id) {
        if (batch->purpose != TransferBatch::Purpose::transfer) return;
        CacheLock locked(core, LockUse::movement);
        if (batch->finished(items.first)) return;
        batch->ids[items.first] = id;
        TransferScheduler& scheduler = core.services->scheduler;
        if (batch->cancelled) {
          locked.after([&scheduler, id] { scheduler.cancel(id); });
        } else if (const Raise now = raise_of(*batch);
                   now.priority > items.urgency.priority || now.urgency < items.urgency.urgency) {
          locked.after([&scheduler, id, now] { scheduler.raise(id, now); });
        }
      });
}

void Transfers::items_ended(CacheLock& locked, const Batch& batch, Items items,
                            const JobOutcome& outcome) {
  const Tier from = batch->items[items.first].source.tier();
  if (outcome.state != JobState::cancelled) {
    locked.core().services->totals.moved(
        from, batch->to,
        static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::microseconds>(outcome.running).count()));
  }
  if (outcome.state == JobState::failed) {
    const Error& first = outcome.failures.front().error;
    locked.after([core = locked.core().shared_from_this(), from, to = batch->to,
                  blocks = outcome.failures.size(), first] {
      core->services->log.warning("blocks were not moved", {{"cache", core->config.name},
                                                            {"from", to_string(from)},
                                                            {"to", to_string(to)},
                                                            {"blocks", blocks},
                                                            {"code", to_string(first.code)},
                                                            {"detail", first.detail}});
    });
  }
  auto failure = outcome.failures.begin();
  std::uint64_t came = 0;
  Batch again;
  for (std::size_t i = 0; i < items.count; ++i) {
    // The job counts as in progress until all its items have ended, so nothing ends the batch
    // before.
    if (i > 0 && i % kStepItems == 0) locked.yield();
    const std::size_t index = items.first + i;
    const bool failed = failure != outcome.failures.end() && failure->index == i;
    const Error* const error = failed ? &(failure++)->error : nullptr;
    if (outcome.state == JobState::cancelled || failed) {
      not_arrived(locked, *batch, index, error);
    } else {
      came += arrived(locked, *batch, index) ? 1u : 0u;
    }
    notify_followers(locked, *batch, index, error, again);
  }
  if (batch->transfer) {
    locked.services().transfers.add(
        *batch->transfer,
        {.blocks = came, .bytes = came * block_bytes(locked.core().shape(items.kv_group))});
  }
  locked.serve_again();  // a leaving block may stay, and a request may have counted on it
  --batch->jobs;
  batch->ids.erase(items.first);
  batch->ended_jobs.insert(items.first);
  submit_next(locked, batch);
  if (batch->ended_all()) finish(locked, batch);
  if (again) bring(locked, again);
}

void Transfers::hold_for_lease(CacheLock& locked, const TransferBatch& batch, SlotRef copy) {
  if (!batch.lease || locked->dropped) return;
  if (const auto lease = locked->leases.find(*batch.lease)) {
    locked->store.pin_for_lease(copy);
    locked->leases.add(*lease, std::span(&copy, 1));
  }
}

void Transfers::end_expected(CacheLock& locked, TransferBatch& batch, std::uint64_t units) {
  units = std::min(units, batch.prefetching_units);  // 0 of what is no prefetch
  if (units == 0) return;
  batch.prefetching_units -= units;
  locked->store.pool(batch.to).unexpect_prefetched(batch.prefetching_user, units);
}

bool Transfers::arrived(CacheLock& locked, TransferBatch& batch, std::size_t index) {
  batch.items[index].ended = true;
  const TransferBatch::Item item = batch.items[index];
  Route& route = route_of(batch, item.source.tier());
  --route.in_flight_blocks;
  ++route.blocks[static_cast<std::size_t>(TransferOutcome::done)];
  end_expected(locked, batch, units_of(locked, batch, item));
  route.bytes += block_bytes(locked.core().shape(locked->store.kv_group(item.source)));

  SlotRecord& source = locked->store.record(item.source);
  const bool vanished = source.gone;
  const EntryNumber key = source.owner;
  if (!vanished && locked->store.entry(key).slots[index_of(batch.to)] == kNoSlot) {
    locked->store.record(item.destination).priority = locked->store.own_priority(item.source);
    locked->store.record(item.destination).used_again = source.used_again;
    locked->store.copy_history(item.source, item.destination);
    locked->store.add_copy(key, item.destination);
    hold_for_lease(locked, batch, item.destination);
    if (batch.is_prefetch && !is_requested({batch.keys[index], batch.to})) {
      locked->store.set_prefetched(item.destination, batch.prefetching_user);
    }
  }
  locked->store.unpin(item.destination);

  if (batch.purpose == TransferBatch::Purpose::offload) {
    const bool wanted_again = source.pins > 1 || source.is_protected;
    if (vanished || wanted_again) {
      locked->store.end_leaving(item.source);
    } else {
      locked->store.drop(item.source, batch.reason);
      ++batch.left;
      ++batch.offloaded;
    }
    locked->store.unpin(item.source);
    return true;
  }
  let_source_go(locked, batch, item.source);
  if (!vanished && batch.drop_source)
    drop_moved_copies(locked, {.key = key, .from = item.source.tier(), .to = batch.to});
  if (batch.transfer && vanished) {
    ++batch.failed;
    locked.services().transfers.add(*batch.transfer, {batch.keys[index], key_vanished()});
  }
  return !vanished;
}

void Transfers::drop_moved_copies(CacheLock& locked, const Moved& moved) {
  const auto slots = locked->store.entry(moved.key).slots;
  std::optional<SlotRef> pinned;
  for (Tier tier : kTiers) {
    const bool goes = tier != moved.to && (tier < moved.to || tier == moved.from);
    if (slots[index_of(tier)] == kNoSlot || !goes) continue;
    const SlotRef copy{tier, slots[index_of(tier)]};
    if (locked->store.record(copy).is_protected) {
      pinned = copy;
    } else {
      drop_unless_leased(locked, copy);
    }
  }
  // The last one, so that its pins find the copy that was moved. A copy that is being read would go
  // later, when there may be no room for them any more.
  if (pinned && locked->store.record(*pinned).pins == 0 && locked->pins.may_move(locked, *pinned)) {
    drop_unless_leased(locked, *pinned);
  }
}

void Transfers::not_arrived(CacheLock& locked, TransferBatch& batch, std::size_t index,
                            const Error* error) {
  batch.items[index].ended = true;
  const TransferBatch::Item item = batch.items[index];
  const Tier from = item.source.tier();
  Route& route = route_of(batch, from);
  --route.in_flight_blocks;
  const TransferOutcome outcome = error ? TransferOutcome::failed : TransferOutcome::cancelled;
  ++route.blocks[static_cast<std::size_t>(outcome)];
  end_expected(locked, batch, units_of(locked, batch, item));
  ++(error ? batch.failed : batch.skipped);
  if (error == nullptr && batch.is_prefetch && !is_requested({batch.keys[index], batch.to})) {
    locked->store.count_prefetched(PrefetchResult::late, 1);
  }

  if (error && batch.to == Tier::disk && error->code == ErrorCode::no_capacity) ++disk_full_;
  locked->store.unpin(item.destination);
  const SlotRecord& source = locked->store.record(item.source);
  if (error) drop_unreadable(locked, item.source, source.generation, *error);
  if (batch.purpose == TransferBatch::Purpose::offload) {
    const bool by_request = batch.reason == EvictionReason::request;
    if (let_go(locked, item.source, by_request ? batch.reason : EvictionReason::io_error))
      ++batch.left;
  } else {
    let_source_go(locked, batch, item.source);
  }
  if (error && batch.transfer) {
    locked.services().transfers.add(*batch.transfer, {batch.keys[index], *error});
  }
}

void Transfers::finish(CacheLock& locked, const Batch& batch) {
  if (std::exchange(batch->over, true)) return;
  moving_.erase(batch->number);
  let_kept_go(locked, *batch);
  end_expected(locked, *batch, batch->prefetching_units);
  batch->pins.give_back_all();
  if (batch->ended) batch->ended(locked, *batch);
  if (!batch->transfer) return;
  transfers_.erase(*batch->transfer);
  const TransferState state = batch->failed > 0    ? TransferState::failed
                              : batch->skipped > 0 ? TransferState::cancelled
                                                   : TransferState::done;
  locked.after([services = locked.core().services, id = *batch->transfer, state] {
    services->transfers.end(id, state);
  });
}

void Transfers::cancel_batch(CacheLock& locked, const Batch& batch) {
  batch->cancelled = true;
  batch->skipped += std::exchange(batch->following, 0);
  if (batch->request != 0) {
    return locked->slots.cancel(locked, batch->to, batch->request,
                                {ErrorCode::cancelled, "the transfer was cancelled"});
  }
  Batch again;
  while (batch->next < batch->items.size()) {
    not_arrived(locked, *batch, batch->next, nullptr);
    notify_followers(locked, *batch, batch->next, nullptr, again);
    if (++batch->next % kStepItems == 0) locked.yield();
  }
  for (const auto& [first, id] : batch->ids) {
    locked.after([services = locked.core().services, id = id] { services->scheduler.cancel(id); });
  }
  // Otherwise the end of the last job finishes it.
  if (batch->jobs == 0 && !batch->open) finish(locked, batch);
  if (again) bring(locked, again);
}

void Transfers::drop_unless_leased(CacheLock& locked, SlotRef at) {
  SlotRecord& slot = locked->store.record(at);
  if (slot.leases > 0) return;
  if (slot.pins > 0) {
    slot.drop_when_unpinned = true;
  } else {
    locked->store.drop(at, EvictionReason::request);
  }
}

void Transfers::drop_unreadable(CacheLock& locked, SlotRef at, std::uint64_t generation,
                                const Error& error) {
  if (!accuses_source(at.tier(), error.code)) return;
  const SlotRecord& slot = locked->store.record(at);
  if (slot.generation != generation || slot.life != SlotLife::committed || slot.gone) return;
  // Other readers of the block find it gone, so each block counts once.
  if (error.code == ErrorCode::checksum_mismatch) {
    locked.core().services->totals.wrong_checksum(at.tier());
  }
  locked->store.drop(at, EvictionReason::io_error);
}

}  // namespace cairn
