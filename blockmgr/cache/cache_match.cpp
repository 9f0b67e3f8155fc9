// Cache: finding keys.
#include <algorithm>
#include <string>

#include "blockmgr/cache/cache_core.hpp"

namespace cairn {
namespace {

// Reserved at once for the blocks of a match; a longer one grows its list.
constexpr std::size_t kReservedBlocks = 1024;

std::uint64_t present_prefix(BlockStore& store, std::span<const KeyView> keys, TimePoint now) {
  const auto miss = std::ranges::find_if(
      keys, [&](const KeyView& key) { return store.find(key, now) == kNoEntry; });
  return static_cast<std::uint64_t>(miss - keys.begin());
}

}  // namespace

Result<> Cache::match(std::span<const KeyView> keys, std::optional<std::uint32_t> lease_ms,
                      MatchResult& out, const std::shared_ptr<LeaseQuota>& pins_of,
                      const LeaseHolder& holder) {
  CacheCore& core = *core_;
  out.blocks.clear();
  out.lease.reset();
  out.expires_at_unix_ms = 0;
  CAIRN_TRY(core.check_count(keys.size()));
  const bool pins = lease_ms != 0;
  std::uint32_t duration_ms = 0;
  if (pins) {
    auto checked = core.lease_duration_ms(lease_ms);
    if (!checked) return std::move(checked).error();
    duration_ms = *checked;
  }
  out.blocks.reserve(std::min(keys.size(), kReservedBlocks));

  Section section(core);
  CAIRN_TRY(section.check_usable());
  section->leases.end_overdue(section);
  if (pins) CAIRN_TRY(section->leases.check_room());
  BlockStore& store = section->store;
  const auto may_hold = [&](std::uint64_t blocks) -> Result<> {
    CAIRN_TRY(section->leases.check_held(section, blocks));
    return Leases::check_pins(pins_of.get(), blocks);
  };
  // Only what is there is pinned; it is counted where not all of the keys would fit.
  if (pins && !may_hold(keys.size())) {
    CAIRN_TRY(may_hold(present_prefix(store, keys, section.now())));
  }
  LeaseNumber lease = 0;
  BlockStore::PrefixScan scan(store, keys, section.now());
  std::span<const SlotRef> ahead = scan.next();
  if (pins && !ahead.empty()) {
    const TimePoint end = section.now() + std::chrono::milliseconds(duration_ms);
    lease = section->leases.open({.expires_at = end, .holder = holder, .pins = pins_of});
    out.lease = section->leases[lease].id;
    out.expires_at_unix_ms = section.unix_ms() + duration_ms;
  }
  while (!ahead.empty()) {
    const std::span<const SlotRef> found = ahead;
    ahead = scan.next();
    if (pins) {
      for (const SlotRef at : found) store.pool(at.tier()).prefetch_neighbours(at.slot());
    }
    for (const SlotRef at : found) {
      if (pins) store.pin_for_lease(at);
      out.blocks.push_back(store.handle(at));
      ++section->counts.hits[index_of(at.tier())];
    }
    if (pins) section->leases.add(lease, found);
  }
  if (!pins) {
    // As when a lease is released: the end of the prefix stays the least recently used of it.
    for (auto block = out.blocks.rbegin(); block != out.blocks.rend(); ++block) {
      store.touch({block->tier, block->slot});
    }
  }
  ++section->counts.matches;
  section->counts.misses += keys.size() - out.blocks.size();
  return {};
}

Result<Cache::Held> Cache::hold(std::span<const KeyView> keys, const HoldTerms& terms) {
  CacheCore& core = *core_;
  const auto duration_ms = core.lease_duration_ms(terms.lease_ms);
  if (!duration_ms) return duration_ms.error();
  Section section(core);
  CAIRN_TRY(section.check_usable());
  section->leases.end_overdue(section);
  CAIRN_TRY(section->leases.check_held(section, keys.size()));
  const TimePoint end = section.now() + std::chrono::milliseconds(*duration_ms);
  std::optional<LeaseNumber> number;
  if (terms.lease) {
    auto lease = section->leases.live(section, *terms.lease);
    if (!lease) return std::move(lease).error();
    number = *lease;
    section->leases.renew(*number, end);
  }
  Held held{.blocks = std::vector<std::optional<BlockHandle>>(keys.size()), .lease = terms.lease};
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const EntryNumber entry = section->store.find(keys[i], section.now());
    if (entry == kNoEntry) continue;
    if (!number) {
      CAIRN_TRY(section->leases.check_room());
      number = section->leases.open({.expires_at = end, .holder = terms.holder});
      held.lease = section->leases[*number].id;
    }
    const SlotRef at = section->store.highest_copy(section->store.entry(entry));
    section->store.pin_for_lease(at);
    section->leases.add(*number, std::span(&at, 1));
    held.blocks[i] = section->store.handle(at);
  }
  return held;
}

std::optional<BlockKey> Cache::parent(KeyView key) const {
  Section section(*core_);
  if (section->dropped) return std::nullopt;
  const EntryNumber entry = section->store.find(key, section.now());
  if (entry == kNoEntry) return std::nullopt;
  const EntryNumber parent = section->store.entry(entry).parent;
  if (parent == kNoEntry) return std::nullopt;
  return section->store.key(parent);
}

std::vector<bool> Cache::contains(std::span<const KeyView> keys) const {
  std::vector<bool> present(keys.size());
  Section section(*core_);
  if (section->dropped) return present;
  const TimePoint now = core_->services->clock.now();
  for (std::size_t i = 0; i < keys.size(); ++i) present[i] = section->store.contains(keys[i], now);
  return present;
}

}  // namespace cairn
