// Cache: pins of clients.
#include <algorithm>

#include "blockmgr/cache/cache.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Under one hold of the lock: blocks pinned or unpinned, some 300 ns each, and pins or blocks of a
// session looked at.
constexpr std::size_t kStepPinned = 48;
constexpr std::size_t kStepLookedAt = 256;

void count(PinResult& result, Pins::Added added) {
  switch (added) {
    case Pins::Added::added:
      ++result.blocks;
      break;
    case Pins::Added::named:
      break;
    case Pins::Added::budget:
      ++result.budget;
      break;
    case Pins::Added::too_many:
      ++result.too_many;
      break;
  }
}

void count(CacheLock& locked, BlockStore::Trail trail, SessionInfo& info) {
  const auto at = locked->store.follow(trail);
  if (!at) {
    ++info.missing;
    return;
  }
  ++info.blocks[index_of(at->tier())];
  const KvGroupNumber kv_group = locked->store.entry(trail.entry).kv_group();
  info.bytes += block_bytes(locked.core().shape(kv_group));
}

}  // namespace

Result<PinResult> Cache::pin(const PinRequest& request) {
  CacheCore& core = *core_;
  CAIRN_TRY(core.check_count(request.keys.size()));
  PinResult result;
  CacheLock locked(core, LockUse::lease);
  CAIRN_TRY(locked.check_usable());
  locked->pins.end_overdue(locked);
  const auto pin = locked->pins.open({.holder = request.holder,
                                      .session = request.session,
                                      .ttl_ms = request.ttl_ms,
                                      .refresh_on_hit = request.refresh_on_hit});
  if (!pin) {
    result.too_many = request.keys.size();
    return result;
  }
  for (std::size_t i = 0; i < request.keys.size(); ++i) {
    if (i > 0 && i % kStepPinned == 0) {
      locked.yield();
      if (locked->dropped) break;
    }
    const EntryNumber entry = locked->store.find(request.keys[i], locked.now());
    if (entry == kNoEntry) {
      ++result.missing;
    } else if (result.blocks >= request.max_blocks) {
      ++result.beyond;
    } else {
      count(result, locked->pins.add(locked, *pin, entry));
    }
  }
  if (auto usable = locked.check_usable(); !usable) {
    locked->pins.end(locked, *pin);
    return std::move(usable).error();
  }
  result.pin = locked->pins.start(locked, *pin);
  if (result.pin) result.expires_at_unix_ms = locked.unix_ms() + request.ttl_ms;
  return result;
}

Result<std::uint64_t> Cache::unpin(std::span<const BlockKey> keys, const LeaseHolder& holder) {
  CacheCore& core = *core_;
  CAIRN_TRY(core.check_count(keys.size()));
  std::uint64_t blocks = 0;
  CacheLock locked(core, LockUse::lease);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i > 0 && i % kStepPinned == 0) locked.yield();
    CAIRN_TRY(locked.check_usable());
    // The end of a prefix first, as at the end of a lease.
    const EntryNumber entry = locked->store.find(keys[keys.size() - 1 - i], locked.now());
    if (entry != kNoEntry && locked->pins.take_off(locked, holder, entry)) ++blocks;
  }
  return blocks;
}

Result<std::uint64_t> Cache::unpin_session(const LeaseHolder& holder, std::string_view session) {
  std::uint64_t blocks = 0;
  CacheLock locked(*core_, LockUse::lease);
  CAIRN_TRY(locked.check_usable());
  while (true) {
    const auto pins = locked->pins.of_session(holder, session);
    if (pins.empty()) return blocks;
    blocks += locked->pins.describe(pins.front())->blocks;
    locked->pins.end(locked, pins.front());
  }
}

std::optional<std::uint64_t> Cache::end_pin(const PinId& id,
                                            const std::optional<LeaseHolder>& holder) {
  CacheLock locked(*core_, LockUse::lease);
  if (locked->dropped) return std::nullopt;
  locked->pins.end_overdue(locked);
  const auto pin = locked->pins.find(id);
  if (!pin) return std::nullopt;
  const auto info = locked->pins.describe(*pin);
  if (holder) {
    const bool is_own = *holder == nullptr || info->holder == nullptr ? *holder == info->holder
                                                                      : **holder == *info->holder;
    if (!is_own) return std::nullopt;
  }
  locked->pins.end(locked, *pin);
  return info->blocks;
}

PinList Cache::pins(const PinListRequest& request) {
  PinList list;
  CacheLock locked(*core_, LockUse::look);
  locked->pins.end_overdue(locked);
  std::size_t looked_at = 0;
  for (auto pin = locked->pins.next(request.cursor); pin; pin = locked->pins.next(*pin + 1)) {
    if (list.pins.size() == request.limit) {
      list.next_cursor = *pin;
      break;
    }
    const auto info = locked->pins.describe(*pin);
    const bool is_wanted =
        info && (!request.holder || (info->holder && *info->holder == *request.holder));
    if (is_wanted) {
      list.pins.push_back({.pin = info->id,
                           .holder = info->holder,
                           .session = info->session,
                           .blocks = info->blocks,
                           .bytes = info->bytes,
                           .expires_at_unix_ms = locked.unix_ms_at(info->expires_at)});
    }
    if (++looked_at % kStepLookedAt == 0) locked.yield();
    if (locked->dropped) break;
  }
  return list;
}

Result<std::vector<BlockKey>> Cache::keys_of_lease(const LeaseId& id,
                                                   std::span<const BlockHandle> blocks) {
  std::vector<BlockKey> keys;
  CacheLock locked(*core_, LockUse::look);
  for (std::size_t i = 0;; ++i) {
    if (i > 0 && i % kStepLookedAt == 0) locked.yield();
    const auto lease = locked->leases.live(locked, id);
    if (!lease) return lease.error();
    const auto& held = locked->leases[*lease].held;
    if (i >= (blocks.empty() ? held.size() : blocks.size())) return keys;
    const auto at = blocks.empty() ? Result<SlotRef>(held[i]) : Leases::named(locked, blocks[i]);
    if (!at) return at.error();
    const SlotRecord& slot = locked->store.record(*at);
    const bool is_known = slot.life == SlotLife::committed && !slot.gone;
    if (is_known) keys.push_back(locked->store.key(slot.owner));
  }
}

std::vector<BlockKey> Cache::keys_of_session(const LeaseHolder& holder, std::string_view session) {
  std::vector<BlockKey> keys;
  CacheLock locked(*core_, LockUse::look);
  if (locked->dropped) return keys;
  const auto known = locked->sessions.find({holder, session});
  const std::vector<BlockStore::Trail> trails(known.begin(), known.end());
  keys.reserve(trails.size());
  for (std::size_t i = 0; i < trails.size(); ++i) {
    if (i > 0 && i % kStepLookedAt == 0) locked.yield();
    if (locked->dropped) break;
    if (locked->store.follow(trails[i])) keys.push_back(locked->store.key(trails[i].entry));
  }
  return keys;
}

SessionList Cache::sessions(const SessionListRequest& request) {
  SessionList list;
  CacheLock locked(*core_, LockUse::look);
  list.known = locked->sessions.size();
  std::size_t looked_at = 0;
  for (auto& known : locked->sessions.latest(request.holder, request.limit)) {
    SessionInfo info{.holder = std::move(known.holder),
                     .session = std::move(known.session),
                     .last_use_unix_ms = known.last_use_unix_ms};
    for (std::size_t i = 0; !locked->dropped;) {
      // It may change or be forgotten while the lock is yielded.
      const auto trails = locked->sessions.peek({info.holder, info.session});
      for (; i < trails.size() && looked_at < kStepLookedAt; ++i, ++looked_at) {
        count(locked, trails[i], info);
      }
      if (i >= trails.size()) break;
      locked.yield();
      looked_at = 0;
    }
    list.sessions.push_back(std::move(info));
  }
  return list;
}

}  // namespace cairn
