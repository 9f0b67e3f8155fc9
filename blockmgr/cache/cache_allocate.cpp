// Cache: allocation of slots, under a lease.
#include <algorithm>
#include <string>
#include <utility>

#include "blockmgr/cache/cache_core.hpp"

namespace cairn {
namespace {

// Slots added to a lease under one hold of the lock: some 40 ns each.
constexpr std::size_t kSlotsAtATime = 128;
// Followed keys looked up and pinned under one hold of the lock: up to 300 ns each.
constexpr std::size_t kStepFollowed = 48;
// Blocks that no match reaches may replace at most one block in this many of the tier.
constexpr std::uint32_t kCutOffShare = 16;

// One allocation, from the request to the lease. Pins the blocks that the new ones will follow, in
// place, while it waits for slots.
class SlotAsk : public std::enable_shared_from_this<SlotAsk> {
 public:
  struct Terms {
    std::uint32_t lease_ms = 0;
    LeaseQuotaShare pins = {};  // counts the slots until the lease does
  };
  SlotAsk(std::shared_ptr<CacheCore> core, const AllocateRequest& request, Terms terms,
          Done<Allocation> done)
      : core_(std::move(core)),
        request_(request),
        terms_(std::move(terms)),
        done_(std::move(done)) {
    request_.follows = {};  // the span is gone when the slots come
  }

  void begin(Section& section, std::span<const std::optional<BlockKey>> follows) {
    if (follows.empty() || is_lossless(section)) return ask(section, request_.count);
    const std::uint32_t most = hold_followed(section, follows);
    if (auto usable = section.check_usable(); !usable) return refused(section, usable.error());
    ask(section, most);
  }

 private:
  // Whether there are free slots, or evicted blocks move to a lower tier and stay findable.
  bool is_lossless(Section& section) const {
    const SlotPool& pool = section->store.pool(request_.tier);
    if (pool.free_count() >= request_.count && !section->slots.any_waits(request_.tier))
      return true;
    return core_->settings->offload != OffloadMode::never &&
           section->store.next_lower(request_.tier).has_value();
  }

  // Pins the followed blocks. Returns the number of blocks for which others may be evicted.
  std::uint32_t hold_followed(Section& section, std::span<const std::optional<BlockKey>> follows) {
    const SlotPool& pool = section->store.pool(request_.tier);
    few_ = std::min(request_.count, std::max(pool.free_count() + pool.cut_off_count(),
                                             std::max(1U, pool.limit() / kCutOffShare)));
    bool is_reached = true;
    for (std::size_t i = 0; i < follows.size(); ++i) {
      if (i > 0 && i % kStepFollowed == 0) section.give_way();
      if (!follows[i]) continue;
      const EntryNumber parent = section->store.find(*follows[i], section.now());
      if (parent == kNoEntry || section->store.entry(parent).cut_off != 0) {
        if (i == 0) is_reached = false;
        continue;
      }
      followed_.push_back(section->store.highest_copy(section->store.entry(parent)));
      section->store.pin_in_place(followed_.back());
    }
    return is_reached ? request_.count : few_;
  }

  void ask(Section& section, std::uint32_t most) {
    std::uint32_t count = request_.count;
    if (request_.takes_fewer) {
      const std::uint64_t hoped = section->slots.attainable(section, request_.tier);
      count = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(hoped, 1, most));
    } else if (most < count) {
      return refused(
          section,
          {ErrorCode::no_capacity,
           "tier " + std::string(to_string(request_.tier)) + " has room for " +
               std::to_string(most) + " of " + std::to_string(count) +
               " blocks without evicting those that they follow; ask for fewer at a time"});
    }
    SlotRequest wanted{
        .count = count, .priority = request_.priority, .takes_fewer = request_.takes_fewer};
    wanted.granted = [self = shared_from_this()](Section& inner,
                                                 Result<std::span<const SlotRef>> slots) {
      if (!slots) return self->refused(inner, slots.error());
      self->granted(inner, *slots);
    };
    if (auto asked = section->slots.ask(section, request_.tier, std::move(wanted)); !asked) {
      refused(section, asked.error());
    }
  }

  void granted(Section& section, std::span<const SlotRef> slots) {
    if (slots.size() + followed_.size() <= kSlotsAtATime) {
      let_followed_go(section);
      return answer(section, lease_slots(section, slots));
    }
    // The steps need their own section.
    section.after([self = shared_from_this(), taken = std::vector(slots.begin(), slots.end())] {
      Section own(*self->core_, LockUse::allocate);
      self->let_followed_go(own);
      self->answer(own, self->lease_slots(own, taken));
    });
  }

  // If there is no other room, unpins the followed blocks and asks again.
  void refused(Section& section, Error error) {
    if (followed_.empty()) {
      terms_.pins.give_back_all();
      return answer(section, std::move(error));
    }
    section.after([self = shared_from_this(), error = std::move(error)] {
      Section own(*self->core_, LockUse::allocate);
      self->let_followed_go(own);
      if (error.code != ErrorCode::no_capacity) return self->refused(own, error);
      if (auto usable = own.check_usable(); !usable) return self->refused(own, usable.error());
      self->ask(own, self->few_);
    });
  }

  // Unpins from the last one on. Gives way if there are many.
  void let_followed_go(Section& section) {
    for (std::size_t gone = 1; !followed_.empty(); ++gone) {
      section->store.unpin_in_place(followed_.back());
      followed_.pop_back();
      if (gone % kSlotsAtATime == 0) section.give_way();
    }
  }

  void answer(Section& section, Result<Allocation> result) {
    section.after([self = shared_from_this(), result = std::move(result)]() mutable {
      self->done_(std::move(result));
    });
  }

  Result<Allocation> lease_slots(Section& section, std::span<const SlotRef> slots);

  const std::shared_ptr<CacheCore> core_;
  AllocateRequest request_;
  Terms terms_;
  Done<Allocation> done_;
  std::vector<SlotRef> followed_;  // pinned in place
  std::uint32_t few_ = 0;          // blocks that may replace followed ones
};

// Takes over the slots' pins, even if it fails.
Result<Allocation> SlotAsk::lease_slots(Section& section, std::span<const SlotRef> slots) {
  const auto may_open = [&section]() -> Result<> {
    CAIRN_TRY(section.check_usable());
    return section->leases.check_room();
  };
  if (auto may = may_open(); !may) {
    for (const SlotRef at : slots) section->store.unpin(at);
    terms_.pins.give_back_all();
    return std::move(may).error();
  }
  const LeaseNumber lease = section->leases.open({.expires_at = Leases::kNotYet,
                                                  .holder = request_.holder,
                                                  .quota = request_.quota,
                                                  .pins = terms_.pins.quota()});
  Allocation allocation{.lease = section->leases[lease].id};
  allocation.blocks.reserve(slots.size());
  while (true) {
    const auto step = slots.first(std::min(kSlotsAtATime, slots.size()));
    slots = slots.subspan(step.size());
    for (const SlotRef at : step) {
      section->store.record(at).owner = lease;
      section->store.lease_pinned(at);
      allocation.blocks.push_back(section->store.handle(at));
    }
    terms_.pins.give_back(step.size());
    section->leases.add(lease, step);
    if (slots.empty()) break;
    section.give_way();
    // If the cache was removed, that ended the lease and released the slots it had so far.
    if (auto usable = section.check_usable(); !usable) {
      for (const SlotRef at : slots) section->store.unpin(at);
      terms_.pins.give_back_all();
      return std::move(usable).error();
    }
  }
  terms_.pins.give_back_all();  // there may be fewer slots than requested
  section->leases.renew(lease, section.now() + std::chrono::milliseconds(terms_.lease_ms));
  allocation.expires_at_unix_ms = section.unix_ms() + terms_.lease_ms;
  return allocation;
}

Result<> check_request(const CacheCore& core, const AllocateRequest& request) {
  CAIRN_TRY(core.check_tier(request.tier));
  if (request.count < 1 || request.count > core.options().max_blocks_per_request) {
    return Error{ErrorCode::out_of_range,
                 "count is " + std::to_string(request.count) + ", not 1 to " +
                     std::to_string(core.options().max_blocks_per_request)};
  }
  if (request.priority > kMaxPriority) {
    return Error{ErrorCode::out_of_range, "priority is " + std::to_string(request.priority) +
                                              ", not 0 to " + std::to_string(kMaxPriority)};
  }
  return core.check_quota(request.quota.get(), request.tier, request.count);
}

}  // namespace

void Cache::allocate(const AllocateRequest& request, Done<Allocation> done) {
  CacheCore& core = *core_;
  if (auto fine = check_request(core, request); !fine) return done(std::move(fine).error());
  const auto duration_ms = core.lease_duration_ms(request.lease_ms);
  if (!duration_ms) return done(duration_ms.error());

  Section section(core, LockUse::allocate);
  const auto take_on = [&]() -> Result<LeaseQuotaShare> {
    CAIRN_TRY(section.check_usable());
    section->leases.end_overdue(section);
    // Count from here on: a request that waits for slots holds its share.
    auto pins = LeaseQuotaShare::take(request.pins, request.count);
    if (!pins) return pins;
    CAIRN_TRY(section->leases.check_held(section, request.count));
    if (!request.may_evict && (section->store.pool(request.tier).free_count() < request.count ||
                               section->slots.any_waits(request.tier))) {
      return Error{ErrorCode::no_capacity, "tier " + std::string(to_string(request.tier)) +
                                               " has fewer than " + std::to_string(request.count) +
                                               " free blocks"};
    }
    return pins;
  };
  auto pins = take_on();
  if (!pins) {
    return section.after([done = std::move(done), error = std::move(pins).error()]() mutable {
      done(std::move(error));
    });
  }
  std::make_shared<SlotAsk>(core_, request,
                            SlotAsk::Terms{.lease_ms = *duration_ms, .pins = std::move(*pins)},
                            std::move(done))
      ->begin(section, request.follows);
}

}  // namespace cairn
