// Gives slots to requests, in their order: free ones first, then evicted ones.
#include <algorithm>
#include <string>

#include "blockmgr/cache/cache_core.hpp"

namespace cairn {
namespace {

// Costs per slot, charged against what a section may spend under one hold of the lock.
constexpr std::uint32_t kTakeCost = 1;
constexpr std::uint32_t kEvictCost = 4;

Error no_capacity(Tier tier, std::uint32_t count) {
  return {ErrorCode::no_capacity, "tier " + std::string(to_string(tier)) + " cannot give " +
                                      std::to_string(count) +
                                      " blocks: too many are leased or in use"};
}

}  // namespace

std::uint64_t SlotQueue::demand(Tier tier) const {
  std::uint64_t slots = 0;
  for (const SlotRequest& request : requests_[index_of(tier)]) {
    slots += request.count - request.taken.size();
  }
  return slots;
}

std::uint64_t SlotQueue::attainable(Section& section, Tier tier) const {
  const SlotPool& slots = section->store.pool(tier);
  const std::uint64_t hoped = std::uint64_t{slots.free_count()} + slots.evictable_count() +
                              section->store.leaving_count(tier) +
                              section->moves.written_through(tier);
  return hoped - std::min(hoped, demand(tier));
}

Result<> SlotQueue::ask(Section& section, Tier tier, SlotRequest&& request) {
  auto& waiting = requests_[index_of(tier)];
  if (attainable(section, tier) < request.count) return no_capacity(tier, request.count);
  if (waiting.size() >= section.core().options().max_waiting_allocations) {
    return Error{ErrorCode::queue_full, std::to_string(waiting.size()) +
                                            " requests wait for slots of tier " +
                                            std::string(to_string(tier))};
  }
  if (request.id == 0) request.id = next_id();
  request.asked = section.now();
  waiting.push_back(std::move(request));
  // Now, not at the end of the section: an offload must know whether waiting is worthwhile. Each
  // recursion goes down one tier.
  serve(section, tier);
  return {};
}

void SlotQueue::cancel(Section& section, Tier tier, std::uint64_t id, const Error& error) {
  auto& waiting = requests_[index_of(tier)];
  const auto at =
      std::find_if(waiting.begin(), waiting.end(), [id](const auto& r) { return r.id == id; });
  if (at == waiting.end()) return;
  SlotRequest request = std::move(*at);
  waiting.erase(at);
  give_back(section, request);
  request.granted(section, error);
  section.serve_again();  // the next request may want less
}

void SlotQueue::cancel_all(Section& section, Tier tier, const Error& error) {
  auto& waiting = requests_[index_of(tier)];
  while (!waiting.empty()) cancel(section, tier, waiting.front().id, error);
}

// Strictly in order: the first request gets each free slot, so two waiting requests cannot hold
// what the other needs.
void SlotQueue::serve(Section& section, Tier tier) {
  auto& waiting = requests_[index_of(tier)];
  while (!waiting.empty()) {
    if (section.step_is_over()) return section.go_on();
    SlotRequest& first = waiting.front();
    take_free(section, tier, first);
    if (first.taken.size() == first.count) {
      SlotRequest request = take_first(tier);
      request.granted(section, std::span<const SlotRef>(request.taken));
      continue;
    }
    const SlotPool& slots = section->store.pool(tier);
    if (slots.free_count() > 0) return section.go_on();
    const std::uint64_t coming = section->store.leaving_count(tier);
    const std::uint64_t wanted = demand(tier);
    // After this wait, blocks are dropped without a departure.
    const bool may_depart = section.now() - first.asked <= section->departures.wait_at_most();
    if (wanted > coming &&
        reclaim(section, tier, {.count = wanted - coming, .may_depart = may_depart}) > 0) {
      continue;
    }
    if (section.step_is_over()) return section.go_on();
    // Leaving blocks may come back, and may free others that could not leave before them. Blocks in
    // write-through can be evicted after that.
    if (section->store.leaving_count(tier) > 0 || section->moves.written_through(tier) > 0) return;
    SlotRequest last = take_first(tier);
    // If it gave the slots back, the request that makes room in the tier above would ask for them
    // again.
    if (last.takes_fewer && !last.taken.empty()) {
      last.granted(section, std::span<const SlotRef>(last.taken));
      continue;
    }
    give_back(section, last);
    last.granted(section, no_capacity(tier, last.count));
  }
}

SlotRequest SlotQueue::take_first(Tier tier) {
  auto& waiting = requests_[index_of(tier)];
  SlotRequest first = std::move(waiting.front());
  waiting.pop_front();
  return first;
}

void SlotQueue::take_free(Section& section, Tier tier, SlotRequest& request) {
  const SlotPool& slots = section->store.pool(tier);
  while (request.taken.size() < request.count && slots.free_count() > 0 &&
         section.spend(kTakeCost)) {
    request.taken.push_back(section->store.take(tier, request.priority));
    ++taken_;
  }
}

void SlotQueue::give_back(Section& section, SlotRequest& request) {
  for (auto at = request.taken.rbegin(); at != request.taken.rend(); ++at) {
    section->store.unpin(*at);
  }
  taken_ -= static_cast<std::int64_t>(request.taken.size());
  request.taken.clear();
}

std::uint64_t SlotQueue::reclaim(Section& section, Tier tier, Reclaim wanted) {
  const auto staying = [&] {
    const SlotPool& slots = section->store.pool(tier);
    return std::uint64_t{slots.capacity()} - slots.free_count() -
           section->store.leaving_count(tier);
  };
  const std::uint64_t before = staying();
  std::vector<SlotRef> leaving;
  std::vector<SlotRef> departing;
  for (std::uint64_t i = 0; i < wanted.count && section.spend(kEvictCost); ++i) {
    const auto victim = section->store.next_victim(tier);
    if (!victim) break;
    const bool departs = victim->departs && wanted.may_depart;
    // The rest is evicted when one of them has gone.
    if (departs && section->departures.is_full()) break;
    if (victim->offload || departs) {
      section->store.begin_leaving(victim->at);
      if (departs) section->departures.begin();
      (departs ? departing : leaving).push_back(victim->at);
    } else {
      if (victim->departs) section->departures.count_late();
      section->store.drop(victim->at, wanted.reason);
    }
  }
  if (!departing.empty()) section->departures.hand_out(section, departing, wanted.reason);
  if (!leaving.empty()) {
    section->moves.offload(section, std::move(leaving), wanted.reason, {});
  }
  return before - staying();
}

}  // namespace cairn
