#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blockmgr/cache/cache_core.hpp"
#include "blockmgr/disk/slot_journal.hpp"
#include "transport/io/slot_file.hpp"

namespace cairn {

// What a start found in the slots of a disk tier.
struct Recovery {
  std::uint64_t restored = 0;
  std::uint64_t torn = 0;     // slots or logs with an end that is not whole
  bool from_headers = false;  // the checkpoint and the log did not suffice
  std::uint64_t expired = 0;  // their time to live ended meanwhile
  std::uint64_t stale = 0;    // keys that a later header has in another slot
  std::optional<Error> not_mended = {};
  std::vector<std::string> damaged_indexes = {};  // each names a file
  std::uint64_t damaged_headers = 0;
  bool beyond_end = false;   // the index has slots that the tier has no more
  std::uint64_t mended = 0;  // headers that a power cut took from blocks which the index knows
};

// Gives the keys of slots back to a cache that nobody uses yet. Where a key has two slots the later
// entry counts. Handles of lives that ended stay stale; `generation_gap`: lives of a slot that the
// entries may not tell of.
Recovery restore_blocks(CacheCore& core, std::vector<JournalEntry> entries,
                        std::uint64_t generation_gap);

// From the checkpoint and the log; from the slots' headers where those do not suffice.
struct DiskTierStart {
  SlotJournal& journal;
  DiskIo& disk;
};
Result<Recovery> recover_disk_tier(CacheCore& core, DiskTierStart start);

}  // namespace cairn
