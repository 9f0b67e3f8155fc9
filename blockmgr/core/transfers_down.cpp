// Offload and write-through.
#include <algorithm>

#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// As SlotRequest::kv_groups.
std::vector<KvGroupNumber> groups_of(CacheLock& locked, std::span<const SlotRef> blocks) {
  std::vector<KvGroupNumber> groups;
  if (locked.core().config.kv_groups.empty()) return groups;
  groups.reserve(blocks.size());
  for (const SlotRef at : blocks) groups.push_back(locked->store.kv_group(at));
  return groups;
}

}  // namespace

void Transfers::offload(CacheLock& locked, std::vector<SlotRef> victims, EvictionReason reason,
                        Ended ended) {
  const Tier lower = *locked->store.next_lower(victims.front().tier());
  std::uint64_t not_admitted = 0;
  if (lower == Tier::disk && reason != EvictionReason::request) {
    std::erase_if(victims, [&](SlotRef victim) {
      if (admit(locked, victim)) return false;
      if (let_go(locked, victim, reason)) ++not_admitted;
      return true;
    });
  }
  // From the last victim on.
  std::vector<KvGroupNumber> kv_groups = groups_of(locked, victims);
  std::ranges::reverse(kv_groups);
  const std::size_t room =
      locked->slots.fitting(locked, lower, {.count = victims.size(), .kv_groups = kv_groups});
  if (!kv_groups.empty()) kv_groups.resize(room);
  auto batch = std::make_shared<TransferBatch>();
  batch->purpose = TransferBatch::Purpose::offload;
  batch->to = lower;
  batch->reason = reason;
  batch->ended = std::move(ended);
  batch->left = not_admitted;
  // Victims start with the end of a prefix, so its end is what finds no room below.
  const std::size_t unplaced = victims.size() - room;
  for (std::size_t i = 0; i < unplaced; ++i) {
    if (let_go(locked, victims[i], reason)) ++batch->left;
  }
  for (std::size_t i = unplaced; i < victims.size(); ++i) {
    batch->items.push_back({.source = victims[i], .destination = victims[i]});
  }
  if (batch->items.empty()) return finish(locked, batch);
  begin(locked, batch);

  const bool is_reversed = !kv_groups.empty();
  SlotRequest request{.count = static_cast<std::uint32_t>(room),
                      .kv_groups = std::move(kv_groups),
                      .takes_fewer = true};
  request.granted = [this, batch, is_reversed](CacheLock& inner,
                                               Result<std::span<const SlotRef>> slots) {
    const auto homed = static_cast<std::ptrdiff_t>(slots ? slots->size() : 0);
    const auto first = batch->items.end() - homed;
    for (auto item = batch->items.begin(); item != first; ++item) {
      if (let_go(inner, item->source, batch->reason)) ++batch->left;
    }
    // The waiting request counts on these victims. If offload() is still in ask(), it sees the
    // result itself.
    if (first != batch->items.begin() && !batch->asking) inner.serve_again();
    batch->items.erase(batch->items.begin(), first);
    if (homed == 0) return finish(inner, batch);
    if (!is_reversed) return start(inner, batch, *slots);
    start(inner, batch, std::vector<SlotRef>(slots->rbegin(), slots->rend()));
  };
  batch->asking = true;
  auto asked = locked->slots.ask(locked, lower, std::move(request));
  if (!asked) request.granted(locked, std::move(asked).error());
  batch->asking = false;
}

bool Transfers::admit(CacheLock& locked, SlotRef at) {
  const DiskOptions& disk = locked.core().options().disk;
  if (disk.admission == DiskAdmission::second_use && !locked->store.record(at).used_again) {
    ++disk_admission_.rejected;
    return false;
  }
  if (!locked.services().disk_writes.take(locked.core().block_bytes, locked.now())) {
    ++disk_admission_.throttled;
    return false;
  }
  ++disk_admission_.admitted;
  return true;
}

// If a client asked for the eviction, a block that stays is reported, and is not an error.
bool Transfers::let_go(CacheLock& locked, SlotRef victim, EvictionReason reason) {
  const SlotRecord& slot = locked->store.record(victim);
  const bool held = slot.pins > 1 || slot.is_protected;
  const bool needed =
      !slot.gone && reason != EvictionReason::request && locked->store.holds_a_chain(victim);
  const bool leaves = !slot.gone && !held && !needed;
  if (leaves) {
    locked->store.drop(victim, reason);
  } else {
    locked->store.end_leaving(victim);
  }
  locked->store.unpin(victim);
  return leaves;
}

// How many of these blocks the disk's byte rate admits. The cache's configuration asks for
// write-through, so it does not matter whether the blocks were used again.
std::size_t Transfers::within_budget(CacheLock& locked, std::size_t blocks) {
  std::size_t admitted = 0;
  while (admitted < blocks &&
         locked.services().disk_writes.take(locked.core().block_bytes, locked.now()))
    ++admitted;
  disk_admission_.admitted += admitted;
  disk_admission_.throttled += blocks - admitted;
  return admitted;
}

void Transfers::let_source_go(CacheLock& locked, const TransferBatch& batch, SlotRef source) {
  if (batch.purpose == TransferBatch::Purpose::write_through) {
    written_through_[index_of(source.tier())] -= locked->store.units_in(source);
  }
  locked->store.unpin(source);
}

void Transfers::write_through(CacheLock& locked, std::span<const SlotRef> committed) {
  for (Tier lower : kTiers) {
    if (committed.empty() || lower <= committed.front().tier() ||
        !locked.core().spaces[index_of(lower)]) {
      continue;
    }
    // Takes as many as find room, from the start of the prefix. Cut-off blocks evict nothing.
    const auto first_cut_off = std::ranges::find_if(
        committed, [&](SlotRef at) { return locked->store.record(at).cut_off; });
    std::vector<KvGroupNumber> kv_groups = groups_of(locked, committed);
    const SlotQueue::Wanted wanted{.count = committed.size(), .kv_groups = kv_groups};
    std::size_t room = locked->slots.fitting(locked, lower, wanted);
    if (first_cut_off != committed.end()) {
      room = std::min<std::size_t>(room, locked->store.pool(lower).free_count());
    }
    if (lower == Tier::disk) room = within_budget(locked, room);
    if (room == 0) continue;
    auto batch = std::make_shared<TransferBatch>();
    batch->purpose = TransferBatch::Purpose::write_through;
    batch->to = lower;
    for (std::size_t i = 0; i < room; ++i) {
      locked->store.pin(committed[i]);
      written_through_[index_of(committed[i].tier())] += locked->store.units_in(committed[i]);
      batch->items.push_back({.source = committed[i], .destination = committed[i]});
    }
    begin(locked, batch);
    if (!kv_groups.empty()) kv_groups.resize(room);
    SlotRequest request{.count = static_cast<std::uint32_t>(room),
                        .kv_groups = std::move(kv_groups),
                        .takes_fewer = true};
    request.granted = [this, batch](CacheLock& inner, Result<std::span<const SlotRef>> slots) {
      const std::size_t homed = slots ? slots->size() : 0;
      for (; batch->items.size() > homed; batch->items.pop_back()) {
        let_source_go(inner, *batch, batch->items.back().source);
      }
      if (homed == 0) return finish(inner, batch);
      start(inner, batch, *slots);
    };
    if (auto asked = locked->slots.ask(locked, lower, std::move(request)); !asked) {
      request.granted(locked, std::move(asked).error());
    }
  }
}

}  // namespace cairn
