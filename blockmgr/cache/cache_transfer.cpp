// Cache: movements that a client asked for.
#include <algorithm>
#include <string>
#include <unordered_set>

#include "base/hex.hpp"
#include "blockmgr/cache/cache_core.hpp"

namespace cairn {

Result<TransferId> Cache::transfer(TransferRequest request) {
  CacheCore& core = *core_;
  CAIRN_TRY(core.check_tier(request.to));
  CAIRN_TRY(core.check_count(request.keys.size()));
  Section section(core, LockUse::transfer);
  CAIRN_TRY(section.check_usable());
  section->leases.end_overdue(section);
  std::vector<EntryNumber> entries;
  for (const BlockKey& key : request.keys) {
    entries.push_back(section->store.find(key, section.now()));
    if (entries.back() == kNoEntry) {
      return Error{ErrorCode::unknown_key,
                   "key " + to_hex(key.view().bytes()) + " is not in cache " + core.config.name};
    }
  }
  return begin_transfer(section, std::move(request), entries);
}

Result<TransferId> Cache::drain(std::optional<Tier> to) {
  CacheCore& core = *core_;
  TransferRequest request;
  for (Tier tier : kTiers) {
    if (core.spaces[index_of(tier)]) request.to = to.value_or(tier);
  }
  CAIRN_TRY(core.check_tier(request.to));
  Section section(core, LockUse::transfer);
  CAIRN_TRY(section.check_usable());
  section->leases.end_overdue(section);
  section->store.expire(section.now());
  std::vector<EntryNumber> present;
  std::vector<EntryNumber> missing;
  for (EntryNumber entry = 0; entry < section->store.entry_end(); ++entry) {
    const Entry& known = section->store.entry(entry);
    if (!known.present()) continue;
    present.push_back(entry);
    if (known.slots[index_of(request.to)] == kNoSlot) missing.push_back(entry);
  }
  const bool makes_room = missing.size() > section->store.pool(request.to).free_count();
  const std::vector<EntryNumber>& entries = makes_room ? present : missing;
  for (const EntryNumber entry : entries) request.keys.push_back(section->store.key(entry));
  return begin_transfer(section, std::move(request), entries);
}

Result<TransferId> Cache::begin_transfer(Section& section, TransferRequest request,
                                         const std::vector<EntryNumber>& entries) {
  CacheCore& core = *core_;
  std::vector<EntryNumber> seen = entries;
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  std::vector<SingleFlight::Expected*> expected(seen.size());
  std::uint64_t missing = 0;
  std::uint64_t counted = 0;  // of the missing, under the caller's quota
  std::uint64_t kept = 0;     // of what could make room
  const QuotaNumber quota = section->store.quota_number(request.quota);
  for (std::size_t rank = 0; rank < seen.size(); ++rank) {
    const Entry& entry = section->store.entry(seen[rank]);
    const SlotNumber slot = entry.slots[index_of(request.to)];
    if (slot == kNoSlot) {
      expected[rank] = section->moves.on_its_way(section->store.key(seen[rank]), request.to);
      if (expected[rank] != nullptr) continue;
      ++missing;
      if (quota != 0 && entry.quota == quota) ++counted;
    } else if (section->store.record({request.to, slot}).pins == 0) {
      ++kept;
    }
  }
  CAIRN_TRY(core.check_quota(request.quota.get(), request.to, counted));
  if (missing > 0 && missing + kept > section->slots.attainable(section, request.to)) {
    return Error{ErrorCode::no_capacity, "tier " + std::string(to_string(request.to)) +
                                             " cannot take " + std::to_string(missing) +
                                             " more blocks"};
  }
  auto id = core.services->transfers.open(core_, request.keys.size());
  if (!id) return id;

  auto batch = std::make_shared<TransferBatch>();
  batch->to = request.to;
  batch->priority = request.priority;
  batch->drop_source = request.move;
  batch->transfer = *id;
  batch->lease = request.lease;
  std::uint64_t already_there = 0;
  std::vector<bool> taken(seen.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto rank = static_cast<std::size_t>(
        std::lower_bound(seen.begin(), seen.end(), entries[i]) - seen.begin());
    const bool named_before = taken[rank];
    taken[rank] = true;
    const Entry& entry = section->store.entry(entries[i]);
    const bool there = entry.slots[index_of(request.to)] != kNoSlot;
    if (there || named_before) {
      ++already_there;
      if (there && !named_before) {
        batch->kept.push_back({request.to, entry.slots[index_of(request.to)]});
        section->store.pin(batch->kept.back());
        section->moves.hold_for_lease(section, *batch, batch->kept.back());
        if (request.move)
          section->moves.drop_moved_copies(
              section, {.key = entries[i], .from = request.to, .to = request.to});
      }
      continue;
    }
    section->moves.add_key(section, batch, {entries[i], expected[rank]});
  }
  section->moves.launch(section, batch, already_there);
  return *id;
}

Result<std::optional<TransferId>> Cache::onboard(const OnboardRequest& request) {
  CacheCore& core = *core_;
  CAIRN_TRY(core.check_tier(request.tier));
  CAIRN_TRY(core.check_count(request.keys.size()));
  Section section(core, LockUse::transfer);
  auto lease = section->leases.live(section, request.lease);
  if (!lease) return std::move(lease).error();
  auto batch = std::make_shared<TransferBatch>();
  batch->to = request.tier;
  batch->priority = request.priority;
  batch->lease = request.lease;
  const std::uint64_t room = section->slots.attainable(section, request.tier);
  std::vector<Movements::Wanted> chosen;
  std::unordered_set<EntryNumber> seen;
  std::uint64_t missing = 0;
  std::uint64_t counted = 0;  // of them, under the caller's quota
  const QuotaNumber quota = section->store.quota_number(request.quota);
  const LeaseQuota* const pins = section->leases[*lease].pins.get();
  for (const KeyView key : request.keys) {
    const EntryNumber entry = section->store.find(key, section.now());
    if (entry == kNoEntry) break;
    const SlotRef highest = section->store.highest_copy(section->store.entry(entry));
    if (highest.tier() <= request.tier || !seen.insert(entry).second) continue;
    if (pins != nullptr && !pins->fits(chosen.size() + 1)) break;
    if (!section->leases.check_held(section, chosen.size() + 1)) break;
    SingleFlight::Expected* const expected = section->moves.on_its_way(BlockKey(key), request.tier);
    if (expected == nullptr) {
      if (missing == room) break;
      if (quota != 0 && section->store.entry(entry).quota == quota) {
        if (!request.quota->fits(request.tier, counted + 1)) break;
        ++counted;
      }
      ++missing;
    }
    chosen.push_back({entry, expected});
  }
  if (chosen.empty()) return std::optional<TransferId>();
  auto id = core.services->transfers.open(core_, chosen.size());
  if (!id) return std::move(id).error();
  batch->transfer = *id;
  for (const Movements::Wanted& wanted : chosen) section->moves.add_key(section, batch, wanted);
  section->moves.launch(section, batch, 0);
  return std::optional<TransferId>(*id);
}

}  // namespace cairn
