// Cache: leases, from their renewal to their end.
#include <algorithm>
#include <string>

#include "blockmgr/cache/cache.hpp"
#include "blockmgr/cache/cache_hint.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Slots released under one hold of the lock: some 40 ns each.
constexpr std::size_t kStepSlots = 128;

}  // namespace

Result<std::int64_t> Cache::renew(const LeaseId& id, std::optional<std::uint32_t> lease_ms) {
  CacheCore& core = *core_;
  const auto duration_ms = core.lease_duration_ms(lease_ms);
  if (!duration_ms) return duration_ms.error();
  CacheLock locked(core, LockUse::lease);
  auto lease = locked->leases.live(locked, id);
  if (!lease) return std::move(lease).error();
  locked->leases.renew(*lease, locked.now() + std::chrono::milliseconds(*duration_ms));
  return locked.unix_ms() + *duration_ms;
}

namespace {

// Returns the slots of the handles, in order. Yields the lock.
Result<std::vector<SlotRef>> named_slots(CacheLock& locked, std::span<const BlockHandle> blocks) {
  std::vector<SlotRef> slots;
  slots.reserve(blocks.size());
  for (const BlockHandle& block : blocks) {
    if (!slots.empty() && slots.size() % kStepSlots == 0) {
      locked.yield();
      CAIRN_TRY(locked.check_usable());
    }
    const auto at = Leases::named(locked, block);
    if (!at) return at.error();
    if (locked->store.record(*at).committing) return being_committed(*at);
    slots.push_back(*at);
  }
  return slots;
}

Result<LeaseNumber> receiver(CacheLock& locked, LeaseNumber from, const LeaseId& id) {
  auto to = locked->leases.live(locked, id);
  if (to && *to == from) {
    return Error{ErrorCode::impossible, "to_lease is the lease itself, which holds them already"};
  }
  return to;
}

// Releases or hands over all blocks of a lease, and ends it. Yields the lock.
Result<std::uint64_t> release_all(CacheLock& locked, const LeaseId& id,
                                  const std::optional<LeaseId>& to) {
  std::uint64_t count = 0;
  auto lease = locked->leases.live(locked, id);
  while (lease && to && !locked->leases[*lease].held.empty()) {
    const std::span<const SlotRef> held = locked->leases[*lease].held;
    const auto last = held.last(std::min(held.size(), kStepSlots));
    const std::vector<SlotRef> step(last.begin(), last.end());
    CAIRN_TRY(locked->leases.part_with(locked, {.from = id, .to = to}, step));
    count += step.size();
    locked.yield();
    lease = locked->leases.live(locked, id);
  }
  if (!lease) return std::move(lease).error();
  count += locked->leases[*lease].held.size();
  locked->leases.end(locked, *lease, false);
  locked->leases.finish_releases(locked);
  return count;
}

RequestEnd end_of(const CacheCore& core, const ReleaseRequest& request, NextUse next_use) {
  RequestEnd end{.output_tokens = request.output_tokens, .next_use = next_use};
  if (request.input_tokens) {
    end.full_blocks =
        static_cast<std::uint32_t>(*request.input_tokens / core.config.tokens_per_key());
  }
  return end;
}

// Leases and pinned slots that leases() looks at under one hold of the lock. It always looks at all
// slots of one lease, which takes some 40 us for 65,536.
constexpr std::size_t kLeasesLookedAt = 4096;

LeaseInfo describe(const CacheLock& locked, const Lease& lease) {
  LeaseInfo info{.lease = lease.id,
                 .holder = lease.holder,
                 .expires_at_unix_ms = locked.unix_ms_at(lease.expires_at)};
  for (const SlotRef at : lease.held) ++info.blocks[index_of(at.tier())];
  return info;
}

}  // namespace

Result<LeaseList> Cache::leases(const LeaseListRequest& request) {
  CacheCore& core = *core_;
  LeaseList result;
  std::uint64_t next = request.cursor;
  for (bool more = true; more;) {
    CacheLock locked(core, LockUse::look);
    CAIRN_TRY(locked.check_usable());
    locked->leases.end_overdue(locked);
    for (std::size_t looked_at = 0; looked_at < kLeasesLookedAt; ++next) {
      more = next < locked->leases.numbers_end() && result.leases.size() < request.limit;
      if (!more) break;
      const Lease& lease = locked->leases[static_cast<LeaseNumber>(next)];
      ++looked_at;
      if (!lease.is_open || lease.expires_at == Leases::kNotYet) continue;
      if (request.holder && (!lease.holder || *lease.holder != *request.holder)) continue;
      result.leases.push_back(describe(locked, lease));
      looked_at += lease.held.size();
    }
    if (!more && next < locked->leases.numbers_end()) result.next_cursor = next;
  }
  return result;
}

namespace {

// Adds the lease's blocks to the session. Returns the lease by its current number. Yields the lock.
Result<LeaseNumber> name_held(CacheLock& locked, const LeaseId& id, const std::string& session) {
  std::vector<BlockStore::Trail> blocks;
  while (true) {
    auto lease = locked->leases.live(locked, id);
    if (!lease) return lease;
    const Lease& holding = locked->leases[*lease];
    const std::size_t end = std::min(holding.held.size(), blocks.size() + kStepSlots);
    for (std::size_t i = blocks.size(); i < end; ++i) {
      const SlotRecord& slot = locked->store.record(holding.held[i]);
      const bool is_known = slot.life == SlotLife::committed && !slot.gone;
      blocks.push_back(is_known ? locked->store.trail(slot.owner) : BlockStore::Trail{});
    }
    if (end == holding.held.size()) {
      std::erase(blocks, BlockStore::Trail{});
      locked->sessions.add({holding.holder, session}, {blocks, locked.unix_ms()});
      return lease;
    }
    locked.yield();
  }
}

// Releases or hands over some of a lease's blocks. Yields the lock.
Result<std::uint64_t> release_some(CacheLock& locked, const LeaseId& id,
                                   const std::optional<LeaseId>& to,
                                   std::span<const BlockHandle> blocks) {
  const auto named = named_slots(locked, blocks);
  if (!named) return named.error();
  CAIRN_TRY(locked->leases.part_with(locked, {.from = id, .to = to}, *named));
  return named->size();
}

}  // namespace

Result<std::uint64_t> Cache::release(const LeaseId& id, const ReleaseRequest& request) {
  CacheLock locked(*core_, LockUse::lease);
  const auto& [reuse, session] = request.hint;
  auto lease = session.empty() ? locked->leases.live(locked, id) : name_held(locked, id, session);
  if (!lease) return std::move(lease).error();
  const LeaseHolder holder = locked->leases[*lease].holder;
  std::optional<LeaseNumber> to;
  if (request.to_lease) {
    auto other = receiver(locked, *lease, *request.to_lease);
    if (!other) return std::move(other).error();
    to = *other;
    const std::size_t more =
        request.blocks.empty() ? locked->leases[*lease].held.size() : request.blocks.size();
    const Lease& receiving = locked->leases[*other];
    if (receiving.pins != locked->leases[*lease].pins) {
      CAIRN_TRY(Leases::check_pins(receiving.pins.get(), more));
    }
  }
  const NextUse hinted = reuse ? reuse.next_use() : locked->leases[*lease].hinted;
  locked->leases.hint(to.value_or(*lease), hinted);
  locked->counts.count(reuse);
  RequestEnd end = end_of(*core_, request, hinted);
  if (end.output_tokens || end.full_blocks || end.next_use != NextUse::unknown) {
    end.unknown_blocks = locked->store.end_request(locked->leases[*lease].held, end);
    locked.after([core = core_, id, end, input_tokens = request.input_tokens] {
      core->reuse.ended(id, end, input_tokens);
    });
  }
  auto released = request.blocks.empty()
                      ? release_all(locked, id, request.to_lease)
                      : release_some(locked, id, request.to_lease, request.blocks);
  if (released && reuse && !session.empty()) {
    hint_session(locked, {holder, session}, reuse.next_use());
  }
  return released;
}

}  // namespace cairn
