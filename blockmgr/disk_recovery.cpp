#include "blockmgr/disk_recovery.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace cairn {
namespace {

// Headers do not tell of the lives of a slot that never became anybody's: handles of those are made
// stale by so much at once.
constexpr std::uint64_t kHeaderGap = std::uint64_t{1} << 20;
// What a run had handed out and not noted is at most a life after the last noted one, which may
// itself be the one that ended.
constexpr std::uint64_t kLivesARun = 2;

KeyView view_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), static_cast<std::uint8_t>(text.size())};
}

SlotRecordView record_of(const SlotHeader& header) {
  const SlotLabel& label = header.label;
  return {.slot = static_cast<std::uint32_t>(header.slot),
          .generation = label.generation + kHeaderGap,
          .stamp = label.stamp,
          .data_checksum = header.data_checksum,
          .expires_at_unix_ms = label.expires_at_unix_ms,
          .priority = label.priority,
          .key = label.key,
          .parent = label.parent,
          .metadata = label.metadata};
}

// What the index says, and the headers of later lives of its slots: of a life that the index knows
// to have ended the header says nothing new.
std::vector<SlotRecordView> joined(std::vector<SlotRecordView> records, const HeaderScan& scan) {
  std::unordered_map<std::uint32_t, std::size_t> known;
  for (std::size_t i = 0; i < records.size(); ++i) known.emplace(records[i].slot, i);
  for (const SlotHeader& header : scan.headers) {
    const auto at = known.find(static_cast<std::uint32_t>(header.slot));
    if (at == known.end()) {
      records.push_back(record_of(header));
    } else if (header.label.generation > records[at->second].generation) {
      records[at->second] = record_of(header);
    }
  }
  return records;
}

}  // namespace

Recovery restore_blocks(CacheCore& core, std::vector<SlotRecordView> records,
                        std::uint64_t generation_gap) {
  Recovery result;
  // In the order of use, which is that of eviction; of a key's slots the last one counts.
  std::ranges::sort(records, {}, &SlotRecordView::stamp);
  std::unordered_map<std::string_view, std::uint32_t> latest;
  latest.reserve(records.size());
  for (const SlotRecordView& record : records) latest[record.key] = record.slot;
  Section section(core);
  for (std::uint32_t slot = 0; slot < core.disk_slots->num_slots(); ++slot) {
    core.store.raise_generation({Tier::disk, slot}, 1 + generation_gap);
  }
  for (const SlotRecordView& record : records) {
    const SlotRef at(Tier::disk, record.slot);
    core.store.raise_generation(at, record.generation + generation_gap);
    if (record.key.empty()) continue;
    if (latest[record.key] != record.slot) {
      ++result.stale;
      continue;
    }
    if (record.expires_at_unix_ms != 0 && record.expires_at_unix_ms <= section.unix_ms()) {
      ++result.expired;
      continue;
    }
    RestoredBlock block{
        .slot = record.slot,
        .generation = record.generation,
        .last_use = {record.stamp},
        .priority = std::min(record.priority, kMaxPriority),
        .block = {.key = view_of(record.key), .metadata = std::string(record.metadata)}};
    if (!record.parent.empty()) block.block.parent = view_of(record.parent);
    if (record.expires_at_unix_ms != 0) {
      block.block.expires_at =
          section.now() + std::chrono::milliseconds(record.expires_at_unix_ms - section.unix_ms());
    }
    core.disk_slots->set_recovered(record.slot, record.data_checksum);
    if (core.store.restore(std::move(block))) ++result.restored;
  }
  return result;
}

Result<Recovery> recover_disk_tier(CacheCore& core, DiskTierStart start) {
  auto found = start.journal.load();
  if (!found) return std::move(found).error();
  // What a run raised is not noted either: the next one raises by more.
  const std::uint64_t gap = kLivesARun * start.journal.next_log();
  if (found->complete && found->torn == 0) {
    return restore_blocks(core, std::move(found->records), gap);
  }
  auto scan = scan_headers(start.disk, core.layout(Tier::disk), *core.disk_slots);
  if (!scan) return std::move(scan).error();
  Recovery recovery =
      restore_blocks(core, joined(std::move(found->records), *scan), kHeaderGap + gap);
  recovery.torn += scan->torn + found->torn;
  recovery.from_headers = true;
  return recovery;
}

}  // namespace cairn
