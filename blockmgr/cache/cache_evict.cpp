// Cache: copies that a client wants gone.
#include <algorithm>
#include <string>

#include "base/hex.hpp"
#include "blockmgr/cache/cache_core.hpp"

namespace cairn {
namespace {

// What clear() does at a time under the lock.
constexpr std::uint32_t kClearStep = 512;

void respond(Section& section, std::shared_ptr<Done<EvictResult>> done,
             Result<EvictResult> result) {
  section.after([done = std::move(done), result = std::move(result)]() mutable {
    (*done)(std::move(result));
  });
}

// Drops the copies of a key that nobody holds.
void evict_everywhere(CacheCore& core, EntryNumber entry, EvictResult& result) {
  const auto slots = core.store.entry(entry).slots;
  for (Tier tier : kTiers) {
    if (slots[index_of(tier)] == kNoSlot) continue;
    const SlotRef at(tier, slots[index_of(tier)]);
    if (core.store.record(at).pins > 0) {
      ++result.leased;
    } else {
      core.store.drop(at, EvictionReason::request);
      ++result.evicted;
    }
  }
}

}  // namespace

void Cache::evict(std::vector<BlockKey> keys, std::optional<Tier> tier, Done<EvictResult> done) {
  CacheCore& core = *core_;
  auto answer = std::make_shared<Done<EvictResult>>(std::move(done));
  Section section(core);
  const auto refuse = [&]() -> Result<> {
    CAIRN_TRY(core.check_usable());
    if (tier) CAIRN_TRY(core.check_tier(*tier));
    if (keys.size() <= core.options().max_blocks_per_request) return {};
    return Error{ErrorCode::out_of_range,
                 std::to_string(keys.size()) + " keys, not up to " +
                     std::to_string(core.options().max_blocks_per_request)};
  };
  if (auto fine = refuse(); !fine) return respond(section, answer, std::move(fine).error());
  core.end_overdue(section);

  EvictResult result;
  std::vector<SlotRef> leaving;
  // The keys mostly are a prefix: from its tail.
  for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
    const EntryNumber entry = core.store.find(*key, section.now());
    if (entry == kNoEntry) {
      ++result.missing;
      continue;
    }
    if (!tier) {
      evict_everywhere(core, entry, result);
      continue;
    }
    const SlotNumber slot = core.store.entry(entry).slots[index_of(*tier)];
    if (slot == kNoSlot) {
      ++result.missing;
      continue;
    }
    const SlotRef at(*tier, slot);
    if (core.store.record(at).pins > 0) {
      ++result.leased;
    } else if (core.store.wants_offload(at)) {
      core.store.begin_leaving(at);
      leaving.push_back(at);
    } else {
      core.store.drop(at, EvictionReason::request);
      ++result.evicted;
    }
  }
  if (leaving.empty()) return respond(section, answer, result);
  const std::uint64_t total = leaving.size();
  core.offload(section, std::move(leaving), EvictionReason::request,
               [answer, result, total](Section& inner, const Move& move) mutable {
                 result.evicted += move.left;
                 result.offloaded += move.offloaded;
                 result.leased += total - move.left;
                 respond(inner, answer, result);
               });
}

namespace {

// Goes over the slots of some tiers, so many under one hold of the lock, and drops what is not
// held: first the ends of chains and from each upwards, then what is left above held blocks.
class Clearing {
 public:
  Clearing(CacheCore& core, std::vector<Tier> tiers) : core_(core), tiers_(std::move(tiers)) {}

  Result<EvictResult> run() {
    for (const bool only_tails : {true, false}) {
      for (Tier tier : tiers_) {
        std::uint32_t next = 0;
        for (bool more = true; more;) {
          Section section(core_);
          CAIRN_TRY(core_.check_usable());
          core_.end_overdue(section);
          const std::uint32_t end = std::min(core_.store.pool(tier).end(), next + kClearStep);
          for (; next < end; ++next) visit({tier, next}, only_tails);
          more = end < core_.store.pool(tier).end();
        }
      }
    }
    tell_if_empty();
    return result_;
  }

 private:
  void tell_if_empty() {
    Section section(core_);
    const auto is_empty = [this](Tier tier) {
      const SlotPool& slots = core_.store.pool(tier);
      return slots.count(SlotState::committed) == 0 && slots.count(SlotState::evictable) == 0;
    };
    if (core_.dropped || !std::all_of(tiers_.begin(), tiers_.end(), is_empty)) return;
    const bool all = std::all_of(kTiers.begin(), kTiers.end(), is_empty);
    core_.store.tell_cleared(all ? std::nullopt : std::optional(tiers_.front()));
  }

  void visit(SlotRef at, bool only_tails) {
    const SlotRecord& slot = core_.store.record(at);
    if (slot.life == SlotLife::free || slot.gone) return;
    if (slot.pins > 0) {
      if (!only_tails) ++result_.leased;
      return;
    }
    if (only_tails) {
      drop_upwards(slot.owner);
    } else {
      drop(at);
    }
  }

  void drop_upwards(EntryNumber number) {
    while (number != kNoEntry) {
      const Entry& entry = core_.store.entry(number);
      if (entry.children > 0) return;
      const EntryNumber parent = entry.parent;
      // A ghost goes with its last child; its number is then nobody's.
      const bool more = parent != kNoEntry && core_.store.entry(parent).present();
      const auto slots = entry.slots;
      for (Tier tier : tiers_) {
        const SlotNumber at = slots[index_of(tier)];
        if (at != kNoSlot && core_.store.record({tier, at}).pins == 0) drop({tier, at});
      }
      number = more ? parent : kNoEntry;
    }
  }

  void drop(SlotRef at) {
    core_.store.drop(at, EvictionReason::request);
    ++result_.evicted;
  }

  CacheCore& core_;
  const std::vector<Tier> tiers_;
  EvictResult result_;
};

}  // namespace

Result<EvictResult> Cache::clear(std::optional<Tier> tier) {
  std::vector<Tier> tiers;
  if (tier) {
    CAIRN_TRY(core_->check_tier(*tier));
    tiers = {*tier};
  } else {
    for (Tier each : kTiers) {
      if (core_->spaces[index_of(each)]) tiers.push_back(each);
    }
  }
  return Clearing(*core_, std::move(tiers)).run();
}

Result<> Cache::erase(KeyView key) {
  CacheCore& core = *core_;
  Section section(core);
  CAIRN_TRY(core.check_usable());
  core.end_overdue(section);
  const EntryNumber entry = core.store.find(key, section.now());
  if (entry == kNoEntry) {
    return Error{ErrorCode::unknown_key,
                 "key " + to_hex(key.bytes()) + " is not in cache " + core.config.name};
  }
  const auto slots = core.store.entry(entry).slots;
  for (Tier tier : kTiers) {
    const SlotNumber slot = slots[index_of(tier)];
    if (slot != kNoSlot && core.store.record({tier, slot}).leases > 0) {
      return Error{ErrorCode::leased, "key " + to_hex(key.bytes()) + " is leased"};
    }
  }
  core.store.drop_all(entry, EvictionReason::request);
  core.options().reached("erase.noted");
  return {};
}

}  // namespace cairn
