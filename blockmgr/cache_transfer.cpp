// Cache: movements that a client asked for.
#include <algorithm>
#include <string>
#include <unordered_set>

#include "base/hex.hpp"
#include "blockmgr/cache_core.hpp"

namespace cairn {
namespace {

// Where to read from: pinned memory reaches every tier directly; then the device; disk last.
std::optional<SlotRef> best_source(const Entry& entry, Tier to) {
  for (Tier tier : {Tier::pinned, Tier::device, Tier::disk}) {
    const SlotNumber slot = entry.slots[index_of(tier)];
    if (tier != to && slot != kNoSlot) return SlotRef(tier, slot);
  }
  return std::nullopt;
}

// Sources of a tier next to each other, in the order of the keys: jobs read from one tier.
void group_by_source(Move& move) {
  std::vector<std::size_t> order(move.items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return move.items[a].source.tier() < move.items[b].source.tier();
  });
  std::vector<Move::Item> items;
  std::vector<BlockKey> keys;
  for (std::size_t i : order) {
    items.push_back(move.items[i]);
    keys.push_back(move.keys[i]);
  }
  move.items = std::move(items);
  move.keys = std::move(keys);
}

void add_item(CacheCore& core, Move& move, const BlockKey& key, SlotRef source) {
  core.store.pin(source);
  move.items.push_back({.source = source, .destination = source});
  move.keys.push_back(key);
}

// Asks for the slots and takes the keys already there for done.
void launch(Section& section, CacheCore& core, const std::shared_ptr<Move>& move,
            std::uint64_t already_there) {
  const TransferId id = *move->transfer;
  core.services->transfers.add(id, TransferTable::Arrived{.blocks = already_there});
  core.transfers.emplace(id, move);
  if (move->items.empty()) return core.finish(section, move);
  group_by_source(*move);
  SlotRequest request{.id = ++core.last_request,
                      .count = static_cast<std::uint32_t>(move->items.size())};
  move->request = request.id;
  request.granted = [&core, move, id](Section& inner, Result<std::span<const SlotRef>> slots) {
    if (slots) {
      for (std::size_t i = 0; i < move->items.size(); ++i) {
        move->items[i].destination = (*slots)[i];
      }
      return core.start(inner, move);
    }
    for (auto item = move->items.rbegin(); item != move->items.rend(); ++item) {
      core.store.unpin(item->source);
    }
    const bool cancelled = slots.error().code == ErrorCode::cancelled;
    for (const BlockKey& key : move->keys) {
      ++(cancelled ? move->skipped : move->failed);
      if (!cancelled) {
        core.services->transfers.add(id, TransferStatus::Failure{key, slots.error()});
      }
    }
    core.finish(inner, move);
  };
  if (auto asked = core.request_slots(section, move->to, std::move(request)); !asked) {
    request.granted(section, std::move(asked).error());
  }
}

}  // namespace

Result<TransferId> Cache::transfer(TransferRequest request) {
  CacheCore& core = *core_;
  CAIRN_TRY(core.check_tier(request.to));
  if (request.keys.size() > core.options().max_blocks_per_request) {
    return Error{ErrorCode::out_of_range,
                 std::to_string(request.keys.size()) + " keys, not up to " +
                     std::to_string(core.options().max_blocks_per_request)};
  }
  Section section(core);
  CAIRN_TRY(core.check_usable());
  core.end_overdue(section);
  std::vector<EntryNumber> entries;
  for (const BlockKey& key : request.keys) {
    entries.push_back(core.store.find(key, section.now()));
    if (entries.back() == kNoEntry) {
      return Error{ErrorCode::unknown_key,
                   "key " + to_hex(key.view().bytes()) + " is not in cache " + core.config.name};
    }
  }
  std::vector<EntryNumber> seen = entries;
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  std::uint64_t missing = 0;
  std::uint64_t kept = 0;  // of what could make room
  for (EntryNumber entry : seen) {
    const SlotNumber slot = core.store.entry(entry).slots[index_of(request.to)];
    if (slot == kNoSlot) {
      ++missing;
    } else if (core.store.record({request.to, slot}).pins == 0) {
      ++kept;
    }
  }
  if (missing > 0 && missing + kept > core.attainable(request.to)) {
    return Error{ErrorCode::no_capacity, "tier " + std::string(to_string(request.to)) +
                                             " cannot take " + std::to_string(missing) +
                                             " more blocks"};
  }
  auto id = core.services->transfers.open(core_, request.keys.size());
  if (!id) return id;

  auto move = std::make_shared<Move>();
  move->to = request.to;
  move->priority = request.priority;
  move->drop_source = request.move;
  move->transfer = *id;
  std::uint64_t already_there = 0;
  std::vector<bool> taken(seen.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto rank = static_cast<std::size_t>(
        std::lower_bound(seen.begin(), seen.end(), entries[i]) - seen.begin());
    const bool named_before = taken[rank];
    taken[rank] = true;
    const Entry& entry = core.store.entry(entries[i]);
    const bool there = entry.slots[index_of(request.to)] != kNoSlot;
    if (there || named_before) {
      ++already_there;
      if (there && !named_before) {
        move->kept.push_back({request.to, entry.slots[index_of(request.to)]});
        core.store.pin(move->kept.back());
        if (request.move) core.drop_moved_copies(entries[i], request.to, request.to);
      }
      continue;
    }
    add_item(core, *move, request.keys[i], *best_source(entry, request.to));
  }
  launch(section, core, move, already_there);
  return *id;
}

Result<std::optional<TransferId>> Cache::onboard(const OnboardRequest& request) {
  CacheCore& core = *core_;
  CAIRN_TRY(core.check_tier(request.tier));
  if (request.keys.size() > core.options().max_blocks_per_request) {
    return Error{ErrorCode::out_of_range,
                 std::to_string(request.keys.size()) + " keys, not up to " +
                     std::to_string(core.options().max_blocks_per_request)};
  }
  Section section(core);
  auto lease = core.live_lease(section, request.lease);
  if (!lease) return std::move(lease).error();
  auto move = std::make_shared<Move>();
  move->to = request.tier;
  move->priority = request.priority;
  move->lease = request.lease;
  const std::uint64_t room = core.attainable(request.tier);
  std::vector<EntryNumber> chosen;
  std::unordered_set<EntryNumber> seen;
  for (const KeyView key : request.keys) {
    const EntryNumber entry = core.store.find(key, section.now());
    if (entry == kNoEntry || chosen.size() == room) break;
    const SlotRef highest = core.store.highest_copy(core.store.entry(entry));
    if (highest.tier() <= request.tier) continue;
    if (seen.insert(entry).second) chosen.push_back(entry);
  }
  if (chosen.empty()) return std::optional<TransferId>();
  auto id = core.services->transfers.open(core_, chosen.size());
  if (!id) return std::move(id).error();
  move->transfer = *id;
  for (EntryNumber entry : chosen) {
    add_item(core, *move, core.store.key(entry),
             *best_source(core.store.entry(entry), request.tier));
  }
  launch(section, core, move, 0);
  return std::optional<TransferId>(*id);
}

}  // namespace cairn
