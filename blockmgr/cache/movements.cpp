// Batches of copies between tiers. A key gets its new copy only after all bytes have arrived.
#include <algorithm>
#include <string>

#include "base/assert.hpp"
#include "blockmgr/cache/cache_core.hpp"

namespace cairn {
namespace {

// Bus and disk reach full speed at tens of MiB per job; the engine splits it into parts.
constexpr std::uint64_t kJobBytes = 32ull << 20;
// Per batch: while one job runs, the next is ready.
constexpr std::uint32_t kJobsAtOnce = 2;
// Blocks whose headers are made, or whose copies are added, under one hold of the lock: up to 1.5
// us each if nothing of a block is in the processor's caches.
constexpr std::size_t kStepItems = 8;

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

void Movements::start(Section& section, const Batch& batch, std::span<const SlotRef> destinations) {
  batch->request = 0;
  for (std::size_t i = 0; i < batch->items.size(); ++i) {
    batch->items[i].destination = destinations[i];
    ++route_of(*batch, batch->items[i].source.tier()).in_flight_blocks;
  }
  if (batch->transfer) section.services().transfers.begin(*batch->transfer);
  submit_next(section, batch);
}

void Movements::submit_next(Section& section, const Batch& batch) {
  const std::size_t most = std::max<std::size_t>(1, kJobBytes / section.core().block_bytes);
  if (batch->cancelled) return;  // the rest is being given up
  while (batch->jobs < kJobsAtOnce && batch->next < batch->items.size()) {
    Items items{.first = batch->next, .count = 1, .priority = batch->urgency()};
    const Tier from = batch->items[items.first].source.tier();
    while (items.count < most && items.first + items.count < batch->items.size() &&
           batch->items[items.first + items.count].source.tier() == from) {
      ++items.count;
    }
    batch->next += items.count;
    ++batch->jobs;
    section.after([core = section.core().shared_from_this(), batch, items] {
      submit_items(*core, batch, items);
    });
  }
}

namespace {

Urgency who_waits_for(const TransferBatch& batch) {
  switch (batch.purpose) {
    case TransferBatch::Purpose::transfer:
      return Urgency::client;
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

}  // namespace

std::vector<SlotHeader> Movements::headers_of(CacheCore& core,
                                              std::span<const TransferBatch::Item> items) {
  std::vector<SlotHeader> headers;
  headers.reserve(items.size());
  Section section(core, LockUse::movement);
  for (const TransferBatch::Item& item : items) {
    if (!headers.empty() && headers.size() % kStepItems == 0) section.give_way();
    headers.push_back(
        header_of_copy(section, {.source = item.source, .destination = item.destination}));
  }
  return headers;
}

void Movements::submit_items(CacheCore& core, const Batch& batch, Items items) {
  const Tier from = batch->items[items.first].source.tier();
  TransferJob job;
  if (batch->to == Tier::disk) {
    job.headers = headers_of(core, std::span(batch->items).subspan(items.first, items.count));
  }
  job.source = &core.layout(from);
  job.destination = &core.layout(batch->to);
  job.urgency = who_waits_for(*batch);
  job.priority = items.priority;
  job.source_goes = batch->purpose == TransferBatch::Purpose::offload || batch->drop_source;
  for (std::size_t i = items.first; i < items.first + items.count; ++i) {
    const TransferBatch::Item& item = batch->items[i];
    job.pairs.push_back({item.source.slot(), item.destination.slot()});
  }
  core.submit(
      std::move(job),
      [&core, batch, items](const JobOutcome& outcome) {
        if (batch->to == Tier::disk) core.options().failpoint("move.written");
        Section section(core, LockUse::movement);
        section->moves.items_ended(section, batch, items, outcome);
      },
      [&core, batch, items](JobId id) {
        if (batch->purpose != TransferBatch::Purpose::transfer) return;
        Section section(core, LockUse::movement);
        if (batch->finished(items.first)) return;
        batch->ids[items.first] = id;
        TransferEngine& engine = core.services->engine;
        if (batch->cancelled) {
          section.after([&engine, id] { engine.cancel(id); });
        } else if (const std::int32_t urgency = batch->urgency(); urgency > items.priority) {
          section.after([&engine, id, urgency] { engine.raise(id, urgency); });
        }
      });
}

void Movements::items_ended(Section& section, const Batch& batch, Items items,
                            const JobOutcome& outcome) {
  const Tier from = batch->items[items.first].source.tier();
  if (outcome.state != JobState::cancelled) {
    section.core().services->totals.moved(
        from, batch->to,
        static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::microseconds>(outcome.running).count()));
  }
  if (outcome.state == JobState::failed) {
    const Error& first = outcome.failures.front().error;
    section.after([core = section.core().shared_from_this(), from, to = batch->to,
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
    if (i > 0 && i % kStepItems == 0) section.give_way();
    const std::size_t index = items.first + i;
    const bool failed = failure != outcome.failures.end() && failure->index == i;
    const Error* const error = failed ? &(failure++)->error : nullptr;
    if (outcome.state == JobState::cancelled || failed) {
      not_arrived(section, *batch, index, error);
    } else {
      came += arrived(section, *batch, index) ? 1u : 0u;
    }
    tell_followers(section, *batch, index, error, again);
  }
  if (batch->transfer) {
    section.services().transfers.add(*batch->transfer,
                                     {.blocks = came, .bytes = came * section.core().block_bytes});
  }
  section.serve_again();  // a leaving block may stay, and a request may have counted on it
  --batch->jobs;
  batch->ids.erase(items.first);
  batch->ended_jobs.insert(items.first);
  submit_next(section, batch);
  if (batch->ended_all()) finish(section, batch);
  if (again) bring(section, again);
}

void Movements::hold_for_lease(Section& section, const TransferBatch& batch, SlotRef copy) {
  if (!batch.lease || section->dropped) return;
  if (const auto lease = section->leases.find(*batch.lease)) {
    section->store.pin_for_lease(copy);
    section->leases.add(*lease, std::span(&copy, 1));
  }
}

bool Movements::arrived(Section& section, TransferBatch& batch, std::size_t index) {
  batch.items[index].ended = true;
  const TransferBatch::Item item = batch.items[index];
  Route& route = route_of(batch, item.source.tier());
  --route.in_flight_blocks;
  ++route.blocks[static_cast<std::size_t>(TransferOutcome::done)];
  route.bytes += section.core().block_bytes;

  SlotRecord& source = section->store.record(item.source);
  const bool vanished = source.gone;
  const EntryNumber key = source.owner;
  if (!vanished && section->store.entry(key).slots[index_of(batch.to)] == kNoSlot) {
    section->store.record(item.destination).priority = source.priority;
    section->store.record(item.destination).used_again = source.used_again;
    section->store.copy_history(item.source, item.destination);
    section->store.add_copy(key, item.destination);
    hold_for_lease(section, batch, item.destination);
  }
  section->store.unpin(item.destination);

  if (batch.purpose == TransferBatch::Purpose::offload) {
    const bool wanted_again = source.pins > 1;
    if (vanished || wanted_again) {
      section->store.end_leaving(item.source);
    } else {
      section->store.drop(item.source, batch.reason);
      ++batch.left;
      ++batch.offloaded;
    }
    section->store.unpin(item.source);
    return true;
  }
  let_source_go(section, batch, item.source);
  if (!vanished && batch.drop_source)
    drop_moved_copies(section, {.key = key, .from = item.source.tier(), .to = batch.to});
  if (batch.transfer && vanished) {
    ++batch.failed;
    section.services().transfers.add(*batch.transfer, {batch.keys[index], key_vanished()});
  }
  return !vanished;
}

void Movements::drop_moved_copies(Section& section, const Moved& moved) {
  const auto slots = section->store.entry(moved.key).slots;
  for (Tier tier : kTiers) {
    const bool goes = tier != moved.to && (tier < moved.to || tier == moved.from);
    if (slots[index_of(tier)] != kNoSlot && goes) {
      drop_unless_leased(section, {tier, slots[index_of(tier)]});
    }
  }
}

void Movements::not_arrived(Section& section, TransferBatch& batch, std::size_t index,
                            const Error* error) {
  batch.items[index].ended = true;
  const TransferBatch::Item item = batch.items[index];
  const Tier from = item.source.tier();
  Route& route = route_of(batch, from);
  --route.in_flight_blocks;
  const TransferOutcome outcome = error ? TransferOutcome::failed : TransferOutcome::cancelled;
  ++route.blocks[static_cast<std::size_t>(outcome)];
  ++(error ? batch.failed : batch.skipped);

  if (error && batch.to == Tier::disk && error->code == ErrorCode::no_capacity) ++disk_full_;
  section->store.unpin(item.destination);
  const SlotRecord& source = section->store.record(item.source);
  if (error) drop_unreadable(section, item.source, source.generation, *error);
  if (batch.purpose == TransferBatch::Purpose::offload) {
    const bool by_request = batch.reason == EvictionReason::request;
    if (let_go(section, item.source, by_request ? batch.reason : EvictionReason::io_error))
      ++batch.left;
  } else {
    let_source_go(section, batch, item.source);
  }
  if (error && batch.transfer) {
    section.services().transfers.add(*batch.transfer, {batch.keys[index], *error});
  }
}

void Movements::finish(Section& section, const Batch& batch) {
  if (std::exchange(batch->over, true)) return;
  background_.erase(batch->number);
  let_kept_go(section, *batch);
  batch->pins.give_back_all();
  if (batch->ended) batch->ended(section, *batch);
  if (!batch->transfer) return;
  transfers_.erase(*batch->transfer);
  const TransferState state = batch->failed > 0    ? TransferState::failed
                              : batch->skipped > 0 ? TransferState::cancelled
                                                   : TransferState::done;
  section.after([services = section.core().services, id = *batch->transfer, state] {
    services->transfers.end(id, state);
  });
}

void Movements::cancel_batch(Section& section, const Batch& batch) {
  batch->cancelled = true;
  batch->skipped += std::exchange(batch->following, 0);
  if (batch->request != 0) {
    return section->slots.cancel(section, batch->to, batch->request,
                                 {ErrorCode::cancelled, "the transfer was cancelled"});
  }
  Batch again;
  while (batch->next < batch->items.size()) {
    not_arrived(section, *batch, batch->next, nullptr);
    tell_followers(section, *batch, batch->next, nullptr, again);
    if (++batch->next % kStepItems == 0) section.give_way();
  }
  for (const auto& [first, id] : batch->ids) {
    section.after([services = section.core().services, id = id] { services->engine.cancel(id); });
  }
  // Otherwise the end of the last job finishes it.
  if (batch->jobs == 0 && !batch->open) finish(section, batch);
  if (again) bring(section, again);
}

void Movements::drop_unless_leased(Section& section, SlotRef at) {
  SlotRecord& slot = section->store.record(at);
  if (slot.leases > 0) return;
  if (slot.pins > 0) {
    slot.drop_when_unpinned = true;
  } else {
    section->store.drop(at, EvictionReason::request);
  }
}

void Movements::drop_unreadable(Section& section, SlotRef at, std::uint64_t generation,
                                const Error& error) {
  if (!accuses_source(at.tier(), error.code)) return;
  const SlotRecord& slot = section->store.record(at);
  if (slot.generation != generation || slot.life != SlotLife::committed || slot.gone) return;
  // Other readers of the block find it gone, so each block counts once.
  if (error.code == ErrorCode::checksum_mismatch) {
    section.core().services->totals.wrong_checksum(at.tier());
  }
  section->store.drop(at, EvictionReason::io_error);
}

}  // namespace cairn
