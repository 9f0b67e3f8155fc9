// Cache: slots under a lease, from allocation to release.
#include <algorithm>
#include <string>

#include "blockmgr/cache/cache_core.hpp"

namespace cairn {

void Cache::allocate(const AllocateRequest& request, Done<Allocation> done) {
  CacheCore& core = *core_;
  const auto refuse = [&]() -> std::optional<Error> {
    if (auto known = core.check_tier(request.tier); !known) return known.error();
    if (request.count < 1 || request.count > core.options().max_blocks_per_request) {
      return Error{ErrorCode::out_of_range,
                   "count is " + std::to_string(request.count) + ", not 1 to " +
                       std::to_string(core.options().max_blocks_per_request)};
    }
    if (request.priority > kMaxPriority) {
      return Error{ErrorCode::out_of_range, "priority is " + std::to_string(request.priority) +
                                                ", not 0 to " + std::to_string(kMaxPriority)};
    }
    const auto within = core.check_quota(request.quota.get(), request.tier, request.count);
    if (!within) return within.error();
    return std::nullopt;
  };
  if (auto error = refuse()) return done(std::move(*error));
  const auto duration_ms = core.lease_duration_ms(request.lease_ms);
  if (!duration_ms) return done(duration_ms.error());

  auto answer = std::make_shared<Done<Allocation>>(std::move(done));
  Section section(core);
  const auto respond = [answer](Section& at, Result<Allocation> result) {
    at.after([answer, result = std::move(result)]() mutable { (*answer)(std::move(result)); });
  };
  if (auto usable = core.check_usable(); !usable) {
    return respond(section, std::move(usable).error());
  }
  core.end_overdue(section);
  if (auto may = CacheCore::check_pins(request.pins.get(), request.count); !may) {
    return respond(section, std::move(may).error());
  }
  if (auto fits = core.check_held(request.count); !fits) {
    return respond(section, std::move(fits).error());
  }
  if (!request.may_evict && (core.store.pool(request.tier).free_count() < request.count ||
                             !core.requests[index_of(request.tier)].empty())) {
    return respond(section, Error{ErrorCode::no_capacity,
                                  "tier " + std::string(to_string(request.tier)) + " has not " +
                                      std::to_string(request.count) + " free blocks"});
  }
  SlotRequest slots_wanted{.count = request.count, .priority = request.priority};
  slots_wanted.granted = [&core, respond, ms = *duration_ms, quota = request.quota,
                          pins = request.pins, holder = request.holder](
                             Section& inner, Result<std::span<const SlotRef>> slots) {
    if (!slots) return respond(inner, std::move(slots).error());
    if (core.leases.full()) {
      for (SlotRef at : *slots) core.store.unpin(at);
      return respond(inner, Error{ErrorCode::too_many, std::to_string(core.leases.size()) +
                                                           " leases are open, and no more may be"});
    }
    const LeaseNumber number =
        core.leases.open(inner.now() + std::chrono::milliseconds(ms), holder);
    Lease& lease = core.leases[number];
    lease.quota = quota;
    lease.pins = pins;
    Allocation allocation{.lease = lease.id, .expires_at_unix_ms = inner.unix_ms() + ms};
    allocation.blocks.reserve(slots->size());
    for (SlotRef at : *slots) {
      core.store.record(at).owner = number;
      core.store.lease_pinned(at);
      lease.held.push_back(at);
      allocation.blocks.push_back(core.store.handle(at));
    }
    core.leases.count(number);
    respond(inner, std::move(allocation));
  };
  if (auto asked = core.request_slots(section, request.tier, std::move(slots_wanted)); !asked) {
    respond(section, std::move(asked).error());
  }
}

Result<std::int64_t> Cache::renew(const LeaseId& id, std::optional<std::uint32_t> lease_ms) {
  CacheCore& core = *core_;
  const auto duration_ms = core.lease_duration_ms(lease_ms);
  if (!duration_ms) return duration_ms.error();
  Section section(core);
  auto lease = core.live_lease(section, id);
  if (!lease) return std::move(lease).error();
  core.leases.renew(*lease, section.now() + std::chrono::milliseconds(*duration_ms));
  return section.unix_ms() + *duration_ms;
}

namespace {

// The slots that handles name, sorted, each as often as it is named.
Result<std::vector<SlotRef>> named_slots(const CacheCore& core,
                                         std::span<const BlockHandle> blocks) {
  std::vector<SlotRef> slots;
  slots.reserve(blocks.size());
  for (const BlockHandle& block : blocks) {
    CAIRN_TRY(core.check_tier(block.tier));
    const std::string name =
        "slot " + std::to_string(block.slot) + " of tier " + std::string(to_string(block.tier));
    if (!core.store.pool(block.tier).exists(block.slot)) {
      return Error{ErrorCode::unknown_slot, "there is no " + name};
    }
    const SlotRef at(block.tier, block.slot);
    const SlotRecord& slot = core.store.record(at);
    if (slot.generation != block.generation || slot.life == SlotLife::free) {
      return Error{ErrorCode::stale_generation, name + " is at generation " +
                                                    std::to_string(slot.generation) + ", not " +
                                                    std::to_string(block.generation)};
    }
    if (slot.committing) {
      return Error{ErrorCode::state_conflict, name + " is being committed"};
    }
    slots.push_back(at);
  }
  std::sort(slots.begin(), slots.end());
  return slots;
}

// The other lease gets a pin of this one's; an uncommitted block is its own from then on, and
// counts where it would have counted, unless that lease has a quota of its own.
void hand_over(CacheCore& core, LeaseNumber from, LeaseNumber to, SlotRef at) {
  SlotRecord& slot = core.store.record(at);
  if (slot.life == SlotLife::allocated && slot.owner == from) {
    slot.owner = to;
    if (core.leases[to].quota == nullptr) core.leases[to].quota = core.leases[from].quota;
  }
  core.leases[to].held.push_back(at);
}

Result<LeaseNumber> receiver(Section& section, CacheCore& core, LeaseNumber from,
                             const LeaseId& id) {
  auto to = core.live_lease(section, id);
  if (to && *to == from) {
    return Error{ErrorCode::impossible, "to_lease is the lease itself, which holds them already"};
  }
  return to;
}

// Every block of a lease that ends with this.
Result<std::uint64_t> release_all(Section& section, CacheCore& core, LeaseNumber number,
                                  std::optional<LeaseNumber> to) {
  Lease& lease = core.leases[number];
  const std::uint64_t held = lease.held.size();
  if (to) {
    for (const SlotRef at : lease.held) {
      if (!core.store.record(at).committing) continue;
      return Error{ErrorCode::state_conflict, "slot " + std::to_string(at.slot()) + " of tier " +
                                                  std::string(to_string(at.tier())) +
                                                  " is being committed"};
    }
    for (const SlotRef at : lease.held) hand_over(core, number, *to, at);
    lease.held.clear();
    core.leases.count(*to);
  }
  core.end_lease(section, number, false);
  return held;
}

// Slots that list() looks at under one hold of the lock.
constexpr std::size_t kLeasesLookedAt = 65'536;

LeaseInfo describe(const Section& section, const Lease& lease) {
  LeaseInfo info{.lease = lease.id,
                 .holder = lease.holder,
                 .expires_at_unix_ms = section.unix_ms_at(lease.expires_at)};
  for (const SlotRef at : lease.held) ++info.blocks[index_of(at.tier())];
  return info;
}

}  // namespace

Result<LeaseList> Cache::leases(const LeaseListRequest& request) {
  CacheCore& core = *core_;
  LeaseList result;
  std::uint64_t next = request.cursor;
  for (bool more = true; more;) {
    Section section(core);
    CAIRN_TRY(core.check_usable());
    core.end_overdue(section);
    for (std::size_t looked_at = 0; looked_at < kLeasesLookedAt; ++next) {
      more = next < core.leases.end() && result.leases.size() < request.limit;
      if (!more) break;
      const Lease& lease = core.leases[static_cast<LeaseNumber>(next)];
      ++looked_at;
      if (!lease.is_open) continue;
      if (request.holder && (!lease.holder || *lease.holder != *request.holder)) continue;
      result.leases.push_back(describe(section, lease));
      looked_at += lease.held.size();
    }
    if (!more && next < core.leases.end()) result.next_cursor = next;
  }
  return result;
}

Result<std::uint64_t> Cache::release(const LeaseId& id, const ReleaseRequest& request) {
  CacheCore& core = *core_;
  Section section(core);
  auto number = core.live_lease(section, id);
  if (!number) return std::move(number).error();
  std::optional<LeaseNumber> to;
  if (request.to_lease) {
    auto other = receiver(section, core, *number, *request.to_lease);
    if (!other) return std::move(other).error();
    to = *other;
    const Lease& receiving = core.leases[*other];
    const std::size_t more =
        request.blocks.empty() ? core.leases[*number].held.size() : request.blocks.size();
    if (receiving.pins != core.leases[*number].pins) {
      CAIRN_TRY(CacheCore::check_pins(receiving.pins.get(), more));
    }
  }
  if (request.blocks.empty()) return release_all(section, core, *number, to);
  Lease& lease = core.leases[*number];
  auto named = named_slots(core, request.blocks);
  if (!named) return std::move(named).error();
  std::vector<SlotRef> held = lease.held;
  std::sort(held.begin(), held.end());
  if (!std::includes(held.begin(), held.end(), named->begin(), named->end())) {
    return Error{ErrorCode::foreign_lease, "the lease does not hold all of these blocks"};
  }
  // Last first, like the end of a lease.
  std::vector<SlotRef> kept;
  std::vector<SlotRef> given;
  for (auto at = lease.held.rbegin(); at != lease.held.rend(); ++at) {
    const auto wanted = std::lower_bound(named->begin(), named->end(), *at);
    if (wanted == named->end() || *wanted != *at) {
      kept.push_back(*at);
      continue;
    }
    named->erase(wanted);
    if (to) {
      given.push_back(*at);
    } else {
      core.forget_writes(*at);
      core.store.unpin_for_lease(*at);
    }
  }
  lease.held.assign(kept.rbegin(), kept.rend());
  for (auto at = given.rbegin(); at != given.rend(); ++at) hand_over(core, *number, *to, *at);
  core.leases.count(*number);
  if (to) core.leases.count(*to);
  return request.blocks.size();
}

}  // namespace cairn
