// Batches of copies between tiers. A new copy is added to its key only once every byte is there.
#include <algorithm>
#include <string>

#include "base/assert.hpp"
#include "blockmgr/cache/cache_core.hpp"

namespace cairn {
namespace {

// Bus and disk are at full speed from tens of MiB a job; the engine takes it in parts.
constexpr std::uint64_t kJobBytes = 32ull << 20;
// Of one move: while one job is carried out, the next is ready.
constexpr std::uint32_t kJobsAtOnce = 2;

bool on_disk(const BlockLayout& layout) { return layout.storage_kind() == StorageKind::disk; }

}  // namespace

Error key_vanished() { return {ErrorCode::unknown_key, "the key went while it was being moved"}; }

bool accuses_source(Tier source, ErrorCode code) {
  if (source == Tier::disk) {
    return code == ErrorCode::io_error || code == ErrorCode::checksum_mismatch;
  }
  return source == Tier::device && code == ErrorCode::device_error;
}

void CacheCore::submit(TransferJob job, UniqueFunction<void(JobOutcome)> ended,
                       UniqueFunction<void(JobId)> accepted) {
  services->jobs.enter();
  if (on_disk(*job.source) || on_disk(*job.destination)) job.slots = disk_slots.get();
  const auto pairs = static_cast<std::uint32_t>(job.pairs.size());
  auto end = std::make_shared<UniqueFunction<void(JobOutcome)>>(std::move(ended));
  job.on_complete = [self = shared_from_this(), end](JobOutcome outcome) {
    (*end)(std::move(outcome));
    *end = {};  // what it held (pins, staging) is given back before anybody is told that it ended
    self->services->jobs.leave();
  };
  auto submitted = services->engine.submit(std::move(job));
  if (submitted) {
    if (accepted) accepted(*submitted);
    return;
  }
  JobOutcome refused;
  refused.state = JobState::failed;
  for (std::uint32_t i = 0; i < pairs; ++i) refused.failures.push_back({i, submitted.error()});
  (*end)(std::move(refused));
  *end = {};
  services->jobs.leave();
}

void CacheCore::start(Section& section, const std::shared_ptr<Move>& move) {
  move->request = 0;
  for (const Move::Item& item : move->items) {
    ++routes[index_of(item.source.tier())][index_of(move->to)].in_flight_blocks;
  }
  if (move->transfer) services->transfers.begin(*move->transfer);
  submit_next(section, move);
}

void CacheCore::submit_next(Section& section, const std::shared_ptr<Move>& move) {
  const std::size_t most = std::max<std::size_t>(1, kJobBytes / block_bytes);
  while (move->jobs < kJobsAtOnce && move->next < move->items.size()) {
    Items items{.first = move->next, .count = 1, .priority = move->urgency()};
    const Tier from = move->items[items.first].source.tier();
    while (items.count < most && items.first + items.count < move->items.size() &&
           move->items[items.first + items.count].source.tier() == from) {
      ++items.count;
    }
    move->next += items.count;
    ++move->jobs;
    std::vector<SlotLabel> labels;
    for (std::size_t i = items.first; move->to == Tier::disk && i < move->next; ++i) {
      const Move::Item& item = move->items[i];
      labels.push_back(label_of_copy(section, item.source, item.destination));
    }
    section.after([self = shared_from_this(), move, items, labels = std::move(labels)]() mutable {
      self->submit_items(move, items, std::move(labels));
    });
  }
}

namespace {

Urgency who_waits_for(const Move& move) {
  switch (move.purpose) {
    case Move::Purpose::transfer:
      return Urgency::client;
    case Move::Purpose::offload: {
      const bool makes_room =
          move.reason == EvictionReason::capacity || move.reason == EvictionReason::request;
      return makes_room ? Urgency::allocation : Urgency::background;
    }
    case Move::Purpose::write_through:
      return Urgency::background;
  }
  invariant_broken("Purpose", "a value outside the enumeration");
}

}  // namespace

void CacheCore::submit_items(const std::shared_ptr<Move>& move, Items items,
                             std::vector<SlotLabel> labels) {
  const Tier from = move->items[items.first].source.tier();
  TransferJob job;
  job.labels = std::move(labels);
  job.source = &layout(from);
  job.destination = &layout(move->to);
  job.urgency = who_waits_for(*move);
  job.priority = items.priority;
  for (std::size_t i = items.first; i < items.first + items.count; ++i) {
    const Move::Item& item = move->items[i];
    job.pairs.push_back({item.source.slot(), item.destination.slot()});
  }
  submit(
      std::move(job),
      [this, move, items](JobOutcome outcome) { items_ended(move, items, std::move(outcome)); },
      [this, move, items](JobId id) {
        if (move->purpose != Move::Purpose::transfer) return;
        Section section(*this);
        if (move->finished(items.first)) return;
        move->ids[items.first] = id;
        if (move->cancelled) {
          section.after([this, id] { services->engine.cancel(id); });
        } else if (const std::int32_t urgency = move->urgency(); urgency > items.priority) {
          section.after([this, id, urgency] { services->engine.raise(id, urgency); });
        }
      });
}

void CacheCore::items_ended(const std::shared_ptr<Move>& move, Items items, JobOutcome outcome) {
  if (move->to == Tier::disk) options().reached("move.written");
  Section section(*this);
  const Tier from = move->items[items.first].source.tier();
  Route& route = routes[index_of(from)][index_of(move->to)];
  if (outcome.state != JobState::cancelled) {
    route.durations.record_us(static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(outcome.running).count()));
  }
  if (outcome.state == JobState::failed) {
    const Error& first = outcome.failures.front().error;
    section.after([services = services, cache = config.name, from, to = move->to,
                   blocks = outcome.failures.size(), first] {
      services->log.warning("blocks were not moved", {{"cache", cache},
                                                      {"from", to_string(from)},
                                                      {"to", to_string(to)},
                                                      {"blocks", blocks},
                                                      {"code", to_string(first.code)},
                                                      {"detail", first.detail}});
    });
  }
  auto failure = outcome.failures.begin();
  std::shared_ptr<Move> again;
  for (std::size_t i = 0; i < items.count; ++i) {
    const std::size_t index = items.first + i;
    const bool failed = failure != outcome.failures.end() && failure->index == i;
    const Error* const error = failed ? &(failure++)->error : nullptr;
    if (outcome.state == JobState::cancelled || failed) {
      not_arrived(*move, index, error);
    } else {
      arrived(*move, index);
    }
    tell_followers(section, *move, index, error, again);
  }
  section.serve_again();  // what was leaving may stay, and somebody counted on it
  --move->jobs;
  move->ids.erase(items.first);
  move->ended_jobs.insert(items.first);
  submit_next(section, move);
  if (move->ended_all()) finish(section, move);
  if (again) bring(section, again);
}

void CacheCore::hold_for_lease(const Move& move, SlotRef copy) {
  if (!move.lease || dropped) return;
  if (auto lease = leases.find(*move.lease)) {
    store.pin_for_lease(copy);
    leases[*lease].held.push_back(copy);
    leases.count(*lease);
  }
}

void CacheCore::arrived(Move& move, std::size_t index) {
  move.items[index].ended = true;
  const Move::Item item = move.items[index];
  Route& route = routes[index_of(item.source.tier())][index_of(move.to)];
  --route.in_flight_blocks;
  ++route.blocks[static_cast<std::size_t>(TransferOutcome::done)];
  route.bytes += block_bytes;

  SlotRecord& source = store.record(item.source);
  const bool vanished = source.gone;
  const EntryNumber key = source.owner;
  if (!vanished && store.entry(key).slots[index_of(move.to)] == kNoSlot) {
    store.record(item.destination).priority = source.priority;
    store.record(item.destination).used_again = source.used_again;
    store.add_copy(key, item.destination);
    hold_for_lease(move, item.destination);
  }
  store.unpin(item.destination);

  if (move.purpose == Move::Purpose::offload) {
    const bool wanted_again = source.pins > 1;
    if (vanished || wanted_again) {
      store.end_leaving(item.source);
    } else {
      store.drop(item.source, move.reason);
      ++move.left;
      ++move.offloaded;
    }
    store.unpin(item.source);
    return;
  }
  store.unpin(item.source);
  if (!vanished && move.drop_source) drop_moved_copies(key, move.to, item.source.tier());
  if (!move.transfer) return;
  if (vanished) {
    ++move.failed;
    services->transfers.add(*move.transfer, {move.keys[index], key_vanished()});
  } else {
    services->transfers.add(*move.transfer, {.blocks = 1, .bytes = block_bytes});
  }
}

void CacheCore::drop_moved_copies(EntryNumber key, Tier to, Tier from) {
  const auto slots = store.entry(key).slots;
  for (Tier tier : kTiers) {
    if (slots[index_of(tier)] != kNoSlot && tier != to && (tier < to || tier == from)) {
      drop_unless_leased({tier, slots[index_of(tier)]});
    }
  }
}

void CacheCore::not_arrived(Move& move, std::size_t index, const Error* error) {
  move.items[index].ended = true;
  const Move::Item item = move.items[index];
  const Tier from = item.source.tier();
  Route& route = routes[index_of(from)][index_of(move.to)];
  --route.in_flight_blocks;
  const TransferOutcome outcome = error ? TransferOutcome::failed : TransferOutcome::cancelled;
  ++route.blocks[static_cast<std::size_t>(outcome)];
  ++(error ? move.failed : move.skipped);

  if (error && move.to == Tier::disk && error->code == ErrorCode::no_capacity) ++disk_full;
  store.unpin(item.destination);
  const SlotRecord& source = store.record(item.source);
  if (error && accuses_source(from, error->code))
    drop_unreadable(item.source, source.generation, *error);
  if (move.purpose == Move::Purpose::offload) {
    const bool by_request = move.reason == EvictionReason::request;
    if (let_go(item.source, by_request ? move.reason : EvictionReason::io_error)) ++move.left;
  } else {
    store.unpin(item.source);
  }
  if (error && move.transfer) {
    services->transfers.add(*move.transfer, {move.keys[index], *error});
  }
}

void CacheCore::finish(Section& section, const std::shared_ptr<Move>& move) {
  if (std::exchange(move->over, true)) return;
  background.erase(move->number);
  for (auto at = move->kept.rbegin(); at != move->kept.rend(); ++at) store.unpin(*at);
  if (move->ended) move->ended(section, *move);
  if (!move->transfer) return;
  transfers.erase(*move->transfer);
  const TransferState state = move->failed > 0    ? TransferState::failed
                              : move->skipped > 0 ? TransferState::cancelled
                                                  : TransferState::done;
  section.after(
      [services = services, id = *move->transfer, state] { services->transfers.end(id, state); });
}

void CacheCore::cancel_move(Section& section, const std::shared_ptr<Move>& move) {
  move->cancelled = true;
  move->skipped += std::exchange(move->following, 0);
  if (move->request != 0) {
    return cancel_request(section, move->to, move->request,
                          {ErrorCode::cancelled, "the transfer was cancelled"});
  }
  std::shared_ptr<Move> again;
  for (; move->next < move->items.size(); ++move->next) {
    not_arrived(*move, move->next, nullptr);
    tell_followers(section, *move, move->next, nullptr, again);
  }
  for (const auto& [first, id] : move->ids) {
    section.after([services = services, id = id] { services->engine.cancel(id); });
  }
  // Otherwise the last job's end finishes it.
  if (move->jobs == 0) finish(section, move);
  if (again) bring(section, again);
}

void CacheCore::drop_unless_leased(SlotRef at) {
  SlotRecord& slot = store.record(at);
  if (slot.leases > 0) return;
  if (slot.pins > 0) {
    slot.drop_when_unpinned = true;
  } else {
    store.drop(at, EvictionReason::request);
  }
}

void CacheCore::drop_unreadable(SlotRef at, std::uint64_t generation, const Error& error) {
  const SlotRecord& slot = store.record(at);
  if (error.code == ErrorCode::checksum_mismatch) ++checksum_failures[index_of(at.tier())];
  if (slot.generation != generation || slot.life != SlotLife::committed || slot.gone) return;
  store.drop(at, EvictionReason::io_error);
}

}  // namespace cairn
