// What goes to a lower tier without being asked for: blocks that leave theirs, and write-through.
#include <algorithm>

#include "blockmgr/cache/cache_core.hpp"

namespace cairn {

void CacheCore::offload(Section& section, std::vector<SlotRef> victims, EvictionReason reason,
                        UniqueFunction<void(Section&, const Move&)> ended) {
  const Tier lower = *store.next_lower(victims.front().tier());
  std::uint64_t not_admitted = 0;
  if (lower == Tier::disk && reason != EvictionReason::request) {
    std::erase_if(victims, [&](SlotRef victim) {
      if (admit(section, victim)) return false;
      if (let_go(victim, reason)) ++not_admitted;
      return true;
    });
  }
  const std::size_t room = std::min<std::size_t>(victims.size(), attainable(lower));
  auto move = std::make_shared<Move>();
  move->purpose = Move::Purpose::offload;
  move->to = lower;
  move->reason = reason;
  move->ended = std::move(ended);
  move->left = not_admitted;
  // Victims come tail first: what finds no room below is the end of its prefix.
  const std::size_t homeless = victims.size() - room;
  for (std::size_t i = 0; i < homeless; ++i) {
    if (let_go(victims[i], reason)) ++move->left;
  }
  for (std::size_t i = homeless; i < victims.size(); ++i) {
    move->items.push_back({.source = victims[i], .destination = victims[i]});
  }
  if (move->items.empty()) return finish(section, move);
  begin_in_background(section, move);

  SlotRequest request{.count = static_cast<std::uint32_t>(room)};
  request.granted = [this, move](Section& inner, Result<std::span<const SlotRef>> slots) {
    if (!slots) {
      for (const Move::Item& item : move->items) {
        if (let_go(item.source, move->reason)) ++move->left;
      }
      // Whoever began this is counting on it; where it is still asking, it sees for itself.
      if (!move->asking) inner.serve_again();
      return finish(inner, move);
    }
    for (std::size_t i = 0; i < move->items.size(); ++i) move->items[i].destination = (*slots)[i];
    start(inner, move);
  };
  move->asking = true;
  auto asked = request_slots(section, lower, std::move(request));
  if (!asked) request.granted(section, std::move(asked).error());
  move->asking = false;
}

void CacheCore::begin_in_background(const Section& section, const std::shared_ptr<Move>& move) {
  move->number = ++last_background;
  move->began = section.now();
  background.emplace(move->number, move);
}

// A cursor is the number of a movement and of a block in it: what has begun keeps its place.
PendingList Cache::pending(const PendingRequest& request) const {
  // A movement has as many blocks as a request may name, or asked for.
  constexpr int kItemBits = 24;
  const CacheCore& core = *core_;
  PendingList result;
  const TimePoint now = core.services->clock.now();
  MutexLock lock(core.mutex);
  std::uint64_t item = request.cursor & ((std::uint64_t{1} << kItemBits) - 1);
  for (auto at = core.background.lower_bound(request.cursor >> kItemBits);
       at != core.background.end(); ++at) {
    const Move& move = *at->second;
    if (move.number != request.cursor >> kItemBits) item = 0;
    for (; item < move.items.size(); ++item) {
      const SlotRecord& source = core.store.record(move.items[item].source);
      if (move.items[item].ended || source.gone) continue;
      if (result.blocks.size() == request.limit) {
        result.next_cursor = move.number << kItemBits | item;
        return result;
      }
      const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(now - move.began);
      result.blocks.push_back({.key = core.store.key(source.owner),
                               .from = move.items[item].source.tier(),
                               .to = move.to,
                               .age_ms = static_cast<std::uint64_t>(age.count())});
    }
  }
  return result;
}

bool CacheCore::admit(const Section& section, SlotRef at) {
  const DiskOptions& disk = options().disk;
  if (disk.admission == DiskAdmission::second_use && !store.record(at).used_again) {
    ++disk_admission.rejected;
    return false;
  }
  if (!services->disk_writes.take(block_bytes, section.now())) {
    ++disk_admission.throttled;
    return false;
  }
  ++disk_admission.admitted;
  return true;
}

// A victim whose offload came to nothing. It stays where somebody uses it, or where present
// children would be cut off; a client that asked for its eviction is told so, not refused.
bool CacheCore::let_go(SlotRef victim, EvictionReason reason) {
  const SlotRecord& slot = store.record(victim);
  const bool held = slot.pins > 1;
  const bool needed =
      !slot.gone && reason != EvictionReason::request && store.holds_a_chain(victim);
  const bool leaves = !slot.gone && !held && !needed;
  if (leaves) {
    store.drop(victim, reason);
  } else {
    store.end_leaving(victim);
  }
  store.unpin(victim);
  return leaves;
}

// Of so many blocks, written because the cache's body says so: whether they were used again is not
// asked.
std::size_t CacheCore::within_budget(const Section& section, std::size_t blocks) {
  std::size_t admitted = 0;
  while (admitted < blocks && services->disk_writes.take(block_bytes, section.now())) ++admitted;
  disk_admission.admitted += admitted;
  disk_admission.throttled += blocks - admitted;
  return admitted;
}

void CacheCore::write_through(Section& section, const std::vector<SlotRef>& committed) {
  for (Tier lower : kTiers) {
    if (committed.empty() || lower <= committed.front().tier() || !spaces[index_of(lower)]) {
      continue;
    }
    // As many as find room, a prefix from its start.
    std::size_t room = std::min<std::size_t>(committed.size(), attainable(lower));
    if (lower == Tier::disk) room = within_budget(section, room);
    if (room == 0) continue;
    auto move = std::make_shared<Move>();
    move->purpose = Move::Purpose::write_through;
    move->to = lower;
    for (std::size_t i = 0; i < room; ++i) {
      store.pin(committed[i]);
      move->items.push_back({.source = committed[i], .destination = committed[i]});
    }
    begin_in_background(section, move);
    SlotRequest request{.count = static_cast<std::uint32_t>(room)};
    request.granted = [this, move](Section& inner, Result<std::span<const SlotRef>> slots) {
      if (!slots) {
        for (auto item = move->items.rbegin(); item != move->items.rend(); ++item) {
          store.unpin(item->source);
        }
        return finish(inner, move);
      }
      for (std::size_t i = 0; i < move->items.size(); ++i) {
        move->items[i].destination = (*slots)[i];
      }
      start(inner, move);
    };
    if (auto asked = request_slots(section, lower, std::move(request)); !asked) {
      request.granted(section, std::move(asked).error());
    }
  }
}

}  // namespace cairn
