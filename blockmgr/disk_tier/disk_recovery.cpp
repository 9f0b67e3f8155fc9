#include "blockmgr/disk_tier/disk_recovery.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "base/hash.hpp"
#include "blockmgr/index/config_check.hpp"
#include "transport/io/header_scan.hpp"

namespace cairn {
namespace {

// Keys whose index entries are prefetched together.
constexpr std::size_t kFetchedAtOnce = 16;

// Headers do not record a slot's lives that were never committed. This gap makes the handles of
// those lives stale.
constexpr std::uint64_t kHeaderGap = std::uint64_t{1} << 20;
// A run's last life that is not in the log is at most one after the last logged life, and that one
// may itself have ended.
constexpr std::uint64_t kLivesARun = 2;

JournalEntry entry_of(const SlotHeader& header) {
  return {.block = view_of(header.block),
          .place = {.generation = header.place.generation + kHeaderGap,
                    .stamp = header.place.stamp,
                    .slot = static_cast<std::uint32_t>(header.place.slot),
                    .encoded_bytes = static_cast<std::uint32_t>(header.place.encoded_bytes)}};
}

// A key in its KV group: what one slot of a tier holds.
std::pair<std::uint8_t, std::string_view> name_of(const JournalEntry& entry) {
  return {entry.block.kv_group, entry.block.key};
}

// The index or a header claims that this slot holds a key or, if the key is empty, is free.
struct Claim {
  JournalEntry entry;
  std::uint64_t stamp = 0;   // of two slots with the same key, the later one counts
  bool from_header = false;  // nothing shows that its block was acknowledged
};

// Joins the index with the headers of later lives of its slots. The index already knows how earlier
// lives ended.
std::vector<Claim> joined(const std::vector<JournalEntry>& entries, const HeaderScan& scan) {
  std::vector<Claim> claims;
  std::unordered_map<std::uint32_t, std::size_t> known;
  for (const JournalEntry& entry : entries) {
    known.emplace(entry.place.slot, claims.size());
    claims.push_back({.entry = entry, .stamp = entry.place.stamp});
  }
  for (const SlotHeader& header : scan.headers) {
    const Claim claim{.entry = entry_of(header), .stamp = header.place.stamp, .from_header = true};
    const auto at = known.find(claim.entry.place.slot);
    if (at == known.end()) {
      claims.push_back(claim);
    } else if (Claim& noted = claims[at->second];
               header.place.generation > noted.entry.place.generation) {
      noted = claim;
    } else if (name_of(noted.entry) == name_of(claim.entry)) {
      // A block's last use may have been set back to long before it was written.
      noted.stamp = std::max(noted.stamp, claim.stamp);
    }
  }
  return claims;
}

// Leaves each key one slot: the latest that is whole. A header reaches the disk before the last of
// its bytes and before the block is acknowledged. So an incomplete block must not hide a whole one.
Result<> leave_the_latest(std::vector<Claim>& claims, const DiskTierSlots& tier,
                          Recovery& recovery) {
  std::ranges::sort(claims, {}, [](const Claim& claim) {
    return std::tuple(name_of(claim.entry), claim.stamp, claim.entry.place.slot);
  });
  // Range of slots of one key that are still candidates, tried from the end.
  struct Rivals {
    std::size_t first = 0;
    std::size_t last = 0;
  };
  std::vector<Rivals> open;
  for (std::size_t first = 0, next = 0; first < claims.size(); first = next) {
    while (next < claims.size() && name_of(claims[next].entry) == name_of(claims[first].entry)) {
      ++next;
    }
    if (next - first > 1 && !claims[first].entry.block.key.empty())
      open.push_back({first, next - 1});
  }
  const auto make_nobodys = [](Claim& claim) { claim.entry.block.key = {}; };
  while (!open.empty()) {
    std::vector<ClaimedBlock> asked;
    for (const Rivals& rivals : open) {
      const JournalEntry& last = claims[rivals.last].entry;
      asked.push_back({.slot = last.place.slot,
                       .data_bytes = last.block.data_bytes,
                       .encoded_bytes = last.place.encoded_bytes,
                       .data_checksum = last.block.data_checksum});
    }
    auto whole = are_whole(tier, asked);
    if (!whole) return std::move(whole).error();
    std::vector<Rivals> still_open;
    for (std::size_t i = 0; i < open.size(); ++i) {
      auto [first, last] = open[i];
      if ((*whole)[i]) {
        for (; first < last; ++first, ++recovery.stale) make_nobodys(claims[first]);
        continue;
      }
      ++recovery.torn;
      make_nobodys(claims[last]);
      // The last candidate is checked when it is read.
      if (first + 1 < last) still_open.push_back({first, last - 1});
    }
    open = std::move(still_open);
  }
  return {};
}

bool is_of(const SlotHeader& header, const JournalEntry& entry) {
  return header.block.key == entry.block.key && header.block.kv_group == entry.block.kv_group &&
         header.block.data_checksum == entry.block.data_checksum &&
         header.place.encoded_bytes == entry.place.encoded_bytes &&
         header.place.generation <= entry.place.generation;
}

// A power cut may have kept a slot's log entry but lost its header. The index then has blocks that
// nothing could restore if the index is lost, so their headers are written again. `scan` has the
// headers of all of these slots.
Result<std::uint64_t> mend_headers(const std::vector<JournalEntry>& entries, const HeaderScan& scan,
                                   const DiskTierSlots& tier) {
  std::unordered_map<std::uint64_t, const SlotHeader*> there;
  for (const SlotHeader& header : scan.headers) there.emplace(header.place.slot, &header);
  std::vector<SlotHeader> missing;
  for (const JournalEntry& entry : entries) {
    if (entry.block.key.empty()) continue;
    const auto at = there.find(entry.place.slot);
    if (at != there.end() && is_of(*at->second, entry)) continue;
    missing.push_back({.block = copy_of(entry.block),
                       .place = {.file_id = tier.slots.file_id(),
                                 .slot = entry.place.slot,
                                 .generation = entry.place.generation,
                                 .stamp = entry.place.stamp,
                                 .encoded_bytes = entry.place.encoded_bytes}});
  }
  CAIRN_TRY(write_headers(tier, missing));
  return missing.size();
}

Result<std::uint64_t> mend_unflushed(const SlotJournal::Found& found, const DiskTierSlots& tier) {
  if (found.unflushed.empty()) return std::uint64_t{0};
  auto scan = scan_headers(tier, found.unflushed);
  if (!scan) return std::move(scan).error();
  std::vector<JournalEntry> unflushed;
  std::ranges::copy_if(found.entries, std::back_inserter(unflushed), [&](const auto& entry) {
    return std::ranges::binary_search(found.unflushed, entry.place.slot);
  });
  return mend_headers(unflushed, *scan, tier);
}

// Finds the entries whose key a later one has. Entries are sorted by stamp. A hash table of the
// keys would cost half as much as the rest of a start.
std::vector<bool> find_superseded(const std::vector<JournalEntry>& entries) {
  struct Named {
    std::uint64_t hash = 0;
    std::uint32_t number = 0;
  };
  std::vector<Named> by_key;
  by_key.reserve(entries.size());
  for (std::uint32_t i = 0; i < entries.size(); ++i) {
    const BlockRecordView& block = entries[i].block;
    by_key.push_back({hash_bytes(std::as_bytes(std::span(block.key)), block.kv_group), i});
  }
  const auto key_of = [&](const Named& named) { return name_of(entries[named.number]); };
  std::ranges::sort(by_key, [&](const Named& a, const Named& b) {
    if (a.hash != b.hash) return a.hash < b.hash;
    if (key_of(a) != key_of(b)) return key_of(a) < key_of(b);
    return a.number < b.number;
  });
  std::vector<bool> superseded(entries.size());
  for (std::size_t i = 0; i + 1 < by_key.size(); ++i) {
    const bool same =
        by_key[i].hash == by_key[i + 1].hash && key_of(by_key[i]) == key_of(by_key[i + 1]);
    if (same) superseded[by_key[i].number] = true;
  }
  return superseded;
}

void note_mended(Recovery& recovery, const Result<std::uint64_t>& mended) {
  if (mended) {
    recovery.mended = *mended;
  } else {
    recovery.not_mended = mended.error();
  }
}

}  // namespace

namespace {

// Its blocks' layout tells where any block ends.
KvGroupNumber largest_group(const CacheCore& core) {
  KvGroupNumber largest = 0;
  for (KvGroupNumber group = 1; group < core.config.kv_group_count(); ++group) {
    if (block_bytes(core.shape(group)) > block_bytes(core.shape(largest))) largest = group;
  }
  return largest;
}

bool is_of_a_group(const CacheCore& core, const JournalEntry& entry) {
  return entry.block.kv_group < core.config.kv_group_count() &&
         entry.block.data_bytes == block_bytes(core.shape(entry.block.kv_group)) &&
         entry.place.encoded_bytes < entry.block.data_bytes;
}

}  // namespace

namespace {

// A crash may leave claims for blocks of several sizes in one slab: some were there before the slab
// was given to another size. The block that was used last decides.
void leave_one_size(const CacheCore& core, const SlotPool& slots,
                    const std::vector<JournalEntry>& entries, std::vector<bool>& superseded) {
  if (!slots.has_slabs()) return;
  std::unordered_map<SlabNumber, std::uint32_t> units_of_slab;
  for (std::size_t i = entries.size(); i-- > 0;) {
    const JournalEntry& entry = entries[i];
    if (superseded[i] || entry.block.key.empty() || !is_of_a_group(core, entry)) continue;
    const std::uint32_t units = slots.units_of(entry.block.kv_group);
    const auto [at, is_first] =
        units_of_slab.try_emplace(entry.place.slot / slots.slab_units(), units);
    if (at->second != units) superseded[i] = true;
  }
}

void note_contents(SlotContents& slots, const JournalEntry& entry) {
  const std::uint32_t slot = entry.place.slot;
  const std::uint32_t encoded = entry.place.encoded_bytes;
  slots.set_recovered(slot, {.checksum = entry.block.data_checksum, .encoded_bytes = encoded});
  if (!slots.is_sparse()) return;
  const std::uint64_t stored = encoded > 0 ? encoded : entry.block.data_bytes;
  slots.add_pages(slot, pages_of_block(stored));
}

}  // namespace

Recovery restore_blocks(CacheCore& core, std::vector<JournalEntry> entries,
                        std::uint64_t generation_gap) {
  Recovery result;
  // Sorts by use, which is the order of eviction. The last of a key's slots counts.
  std::ranges::sort(entries, {}, [](const JournalEntry& entry) { return entry.place.stamp; });
  std::vector<bool> superseded = find_superseded(entries);
  CacheLock locked(core, LockUse::upkeep);
  leave_one_size(core, locked->store.pool(Tier::disk), entries, superseded);
  for (std::uint32_t slot = 0; slot < core.slot_contents->num_slots(); ++slot) {
    locked->store.raise_generation({Tier::disk, slot}, 1 + generation_gap);
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i % kFetchedAtOnce == 0) {
      std::array<KeyView, kFetchedAtOnce> ahead;
      const std::size_t count = std::min(kFetchedAtOnce, entries.size() - i);
      for (std::size_t j = 0; j < count; ++j) {
        ahead[j] = KeyView::of_text(entries[i + j].block.key, entries[i + j].block.kv_group);
      }
      locked->store.prefetch(std::span(ahead).first(count));
    }
    const JournalEntry& entry = entries[i];
    const SlotRef at(Tier::disk, entry.place.slot);
    locked->store.raise_generation(at, entry.place.generation + generation_gap);
    if (entry.block.key.empty() || !is_of_a_group(core, entry)) continue;
    if (superseded[i]) {
      ++result.stale;
      continue;
    }
    if (entry.block.expires_at_unix_ms != 0 && entry.block.expires_at_unix_ms <= locked.unix_ms()) {
      ++result.expired;
      continue;
    }
    RestoredBlock block{.slot = entry.place.slot,
                        .generation = entry.place.generation,
                        .last_use = {entry.place.stamp},
                        .priority = std::min(entry.block.priority, kMaxPriority),
                        .hinted = entry.place.hinted < kNextUses
                                      ? static_cast<NextUse>(entry.place.hinted)
                                      : NextUse::unknown,
                        .history = entry.place.history,
                        .block = {.key = KeyView::of_text(entry.block.key, entry.block.kv_group),
                                  .metadata = std::string(entry.block.metadata),
                                  .epoch = entry.block.epoch}};
    if (!entry.block.parent.empty()) {
      block.block.parent = KeyView::of_text(entry.block.parent, entry.block.kv_group);
    }
    if (entry.block.expires_at_unix_ms != 0) {
      block.block.expires_at =
          locked.now() +
          std::chrono::milliseconds(entry.block.expires_at_unix_ms - locked.unix_ms());
    }
    note_contents(*core.slot_contents, entry);
    if (locked->store.restore(std::move(block))) ++result.restored;
  }
  locked->store.end_restoring();
  return result;
}

Result<Recovery> recover_disk_tier(CacheCore& core, DiskTierStart start) {
  auto found = start.journal.load();
  if (!found) return std::move(found).error();
  // A raise by this run is not logged either, so the next run raises by more.
  const std::uint64_t gap = kLivesARun * start.journal.next_log();
  const DiskTierSlots tier{start.disk, core.layout(Tier::disk, largest_group(core)),
                           *core.slot_contents, *core.disk_codec};
  std::vector<std::string> damaged_indexes = std::move(found->damage);
  if (found->complete && found->torn == 0) {
    // If the disk fails now, the blocks that the index knows are restored all the same.
    const auto mended = mend_unflushed(*found, tier);
    Recovery recovery = restore_blocks(core, std::move(found->entries), gap);
    note_mended(recovery, mended);
    recovery.beyond_end = found->beyond_end;
    recovery.damaged_indexes = std::move(damaged_indexes);
    return recovery;
  }
  auto scan = scan_headers(tier);
  if (!scan) return std::move(scan).error();
  // A block that covers several slots has its own bytes where their headers would be.
  if (slot_sizes(core.config, Tier::disk).are_several()) scan->torn = 0;
  Recovery recovery;
  auto claims = joined(found->entries, *scan);
  CAIRN_TRY(leave_the_latest(claims, tier, recovery));
  std::vector<JournalEntry> entries;
  std::vector<JournalEntry> noted;
  for (const Claim& claim : claims) {
    entries.push_back(claim.entry);
    if (!claim.from_header) noted.push_back(claim.entry);
  }
  note_mended(recovery, mend_headers(noted, *scan, tier));
  const Recovery restored = restore_blocks(core, std::move(entries), kHeaderGap + gap);
  recovery.restored = restored.restored;
  recovery.expired = restored.expired;
  recovery.torn += scan->torn + found->torn;
  recovery.damaged_indexes = std::move(damaged_indexes);
  recovery.damaged_headers = scan->torn;
  recovery.from_headers = true;
  return recovery;
}

}  // namespace cairn
