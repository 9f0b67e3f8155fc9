// Gives slots to requests, in their order: free ones first, then evicted ones.
#include <algorithm>
#include <string>

#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Costs per slot, charged against what one hold of the lock may spend.
constexpr std::uint32_t kTakeCost = 1;
constexpr std::uint32_t kEvictCost = 4;

Error no_capacity(Tier tier, std::uint32_t count) {
  return {ErrorCode::no_capacity, "tier " + std::string(to_string(tier)) + " cannot give " +
                                      std::to_string(count) +
                                      " blocks: too many are leased or in use"};
}

// The group of the next block that gets a slot.
KvGroupNumber next_group(const SlotRequest& request) {
  return request.kv_groups.empty() ? KvGroupNumber{0} : request.kv_groups[request.taken.size()];
}

}  // namespace

std::uint64_t SlotQueue::demand(Tier tier) const {
  std::uint64_t units = 0;
  for (const SlotRequest& request : requests_[index_of(tier)]) units += request.units;
  return units;
}

std::uint64_t SlotQueue::attainable(CacheLock& locked, Tier tier) const {
  const SlotPool& slots = locked->store.pool(tier);
  const std::uint64_t hoped = std::uint64_t{slots.free_count()} + slots.evictable_count() +
                              locked->store.leaving_units(tier) +
                              locked->transfers.written_through(tier) +
                              locked->sizes.vacating_units(tier);
  return hoped - std::min(hoped, demand(tier));
}

std::size_t SlotQueue::fitting(CacheLock& locked, Tier tier, const Wanted& wanted) const {
  std::uint64_t units = attainable(locked, tier);
  if (wanted.kv_groups.empty()) return std::min<std::size_t>(wanted.count, units);
  const SlotPool& slots = locked->store.pool(tier);
  std::size_t blocks = 0;
  while (blocks < wanted.count && slots.units_of(wanted.kv_groups[blocks]) <= units) {
    units -= slots.units_of(wanted.kv_groups[blocks++]);
  }
  return blocks;
}

Result<> SlotQueue::ask(CacheLock& locked, Tier tier, SlotRequest&& request) {
  auto& waiting = requests_[index_of(tier)];
  CAIRN_ASSERT(request.kv_groups.empty() || request.kv_groups.size() == request.count,
               "a block would get the slot of another group");
  std::uint64_t units = request.count;
  if (!request.kv_groups.empty()) {
    units = 0;
    for (const KvGroupNumber group : request.kv_groups) {
      units += locked->store.pool(tier).units_of(group);
    }
  }
  if (!locked->partials.empty() && attainable(locked, tier) < units) {
    locked->partials.give_way(locked, tier, units - attainable(locked, tier));
  }
  if (attainable(locked, tier) < units) return no_capacity(tier, request.count);
  if (waiting.size() >= locked.core().options().max_waiting_allocations) {
    return Error{ErrorCode::queue_full, std::to_string(waiting.size()) +
                                            " requests wait for slots of tier " +
                                            std::string(to_string(tier))};
  }
  if (request.id == 0) request.id = next_id();
  request.asked = locked.now();
  request.units = units;
  waiting.push_back(std::move(request));
  // Now, not when the lock is released: an offload must know whether waiting is worthwhile. Each
  // recursion goes down one tier.
  serve(locked, tier);
  return {};
}

void SlotQueue::cancel(CacheLock& locked, Tier tier, std::uint64_t id, const Error& error) {
  auto& waiting = requests_[index_of(tier)];
  const auto at =
      std::find_if(waiting.begin(), waiting.end(), [id](const auto& r) { return r.id == id; });
  if (at == waiting.end()) return;
  SlotRequest request = std::move(*at);
  waiting.erase(at);
  give_back(locked, request);
  request.granted(locked, error);
  locked.serve_again();  // the next request may want less
}

void SlotQueue::cancel_all(CacheLock& locked, Tier tier, const Error& error) {
  auto& waiting = requests_[index_of(tier)];
  while (!waiting.empty()) cancel(locked, tier, waiting.front().id, error);
}

// Strictly in order: the first request gets each free slot, so two waiting requests cannot hold
// what the other needs.
void SlotQueue::serve(CacheLock& locked, Tier tier) {
  auto& waiting = requests_[index_of(tier)];
  while (!waiting.empty()) {
    if (locked.step_is_over()) return locked.go_on();
    SlotRequest& first = waiting.front();
    take_free(locked, tier, first);
    if (first.taken.size() == first.count) {
      SlotRequest request = take_first(tier);
      request.granted(locked, std::span<const SlotRef>(request.taken));
      continue;
    }
    const SlotPool& slots = locked->store.pool(tier);
    const KvGroupNumber group = next_group(first);
    if (slots.free_for(group) > 0) return locked.go_on();
    const std::uint64_t wanted = demand(tier);
    const std::uint64_t leaving = locked->store.leaving_units(tier);
    if (wanted > leaving) {
      locked->sizes.vacate(locked, tier, {.kv_group = group, .units = wanted - leaving});
    }
    const std::uint64_t coming = leaving + locked->sizes.vacating_units(tier);
    // After this wait, blocks are dropped without the taker.
    const bool may_go_remote = locked.now() - first.asked <= locked->evict_to_remote.wait_at_most();
    if (wanted > coming &&
        reclaim(locked, tier, {.units = wanted - coming, .may_go_remote = may_go_remote}) > 0) {
      continue;
    }
    if (locked.step_is_over()) return locked.go_on();
    // Leaving blocks may come back, and may free others that could not leave before them. Blocks in
    // write-through can be evicted after that.
    if (locked->store.leaving_units(tier) > 0 || locked->sizes.vacating_units(tier) > 0 ||
        locked->transfers.written_through(tier) > 0) {
      return;
    }
    SlotRequest last = take_first(tier);
    // If it gave the slots back, the request that makes room in the tier above would ask for them
    // again.
    if (last.takes_fewer && !last.taken.empty()) {
      last.granted(locked, std::span<const SlotRef>(last.taken));
      continue;
    }
    give_back(locked, last);
    last.granted(locked, no_capacity(tier, last.count));
  }
}

SlotRequest SlotQueue::take_first(Tier tier) {
  auto& waiting = requests_[index_of(tier)];
  SlotRequest first = std::move(waiting.front());
  waiting.pop_front();
  return first;
}

void SlotQueue::take_free(CacheLock& locked, Tier tier, SlotRequest& request) {
  const SlotPool& slots = locked->store.pool(tier);
  while (request.taken.size() < request.count) {
    const KvGroupNumber group = next_group(request);
    if (slots.free_for(group) == 0 || !locked.spend(kTakeCost)) return;
    request.taken.push_back(
        locked->store.take(tier, {.kv_group = group, .priority = request.priority}));
    request.units -= slots.units_of(group);
    ++taken_;
  }
}

void SlotQueue::give_back(CacheLock& locked, SlotRequest& request) {
  for (auto at = request.taken.rbegin(); at != request.taken.rend(); ++at) {
    locked->store.unpin(*at);
  }
  taken_ -= static_cast<std::int64_t>(request.taken.size());
  request.taken.clear();
}

std::uint64_t SlotQueue::reclaim(CacheLock& locked, Tier tier, Reclaim wanted) {
  const auto staying = [&] {
    const SlotPool& slots = locked->store.pool(tier);
    return std::uint64_t{slots.units_in_use()} - locked->store.leaving_units(tier);
  };
  locked->pins.settle(locked);  // so that it finds no block whose pin looks for another copy
  const std::uint64_t before = staying();
  std::vector<SlotRef> leaving;
  std::vector<SlotRef> to_remote;
  for (std::uint64_t units = 0; units < wanted.units && locked.spend(kEvictCost);) {
    const auto victim = locked->store.next_victim(tier);
    if (!victim) break;
    units += locked->store.units_in(victim->at);
    const bool goes_remote = victim->goes_remote && wanted.may_go_remote;
    // The rest is evicted when one of them has gone.
    if (goes_remote && locked->evict_to_remote.is_full()) break;
    if (victim->offload || goes_remote) {
      locked->store.begin_leaving(victim->at);
      if (goes_remote) locked->evict_to_remote.begin();
      (goes_remote ? to_remote : leaving).push_back(victim->at);
    } else {
      if (victim->goes_remote) locked->evict_to_remote.count_late();
      locked->store.drop(victim->at, wanted.reason);
    }
  }
  if (!to_remote.empty()) locked->evict_to_remote.hand_out(locked, to_remote, wanted.reason);
  if (!leaving.empty()) {
    locked->transfers.offload(locked, std::move(leaving), wanted.reason, {});
  }
  return before - staying();
}

}  // namespace cairn
