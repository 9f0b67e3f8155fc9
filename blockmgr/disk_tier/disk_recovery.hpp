#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blockmgr/core/cache_core.hpp"
#include "blockmgr/disk/slot_journal.hpp"
#include "transport/io/slot_file.hpp"

namespace cairn {

// What recovery found in the slots of a disk tier.
struct Recovery {
  std::uint64_t restored = 0;
  std::uint64_t torn = 0;     // incomplete slots, and logs with an incomplete end
  bool from_headers = false;  // the checkpoint and the log were not enough
  std::uint64_t expired = 0;  // their time to live had ended
  std::uint64_t stale = 0;    // keys with a later header in another slot
  std::optional<Error> not_mended = {};
  std::vector<std::string> damaged_indexes = {};  // file names
  std::uint64_t damaged_headers = 0;
  bool beyond_end = false;   // the index has slots that the tier no longer has
  std::uint64_t mended = 0;  // headers written again, because a power cut had lost them
};

// Restores the keys of slots in a cache that nobody uses yet. If a key has two slots, the later
// entry wins. Handles from before the start stay stale. `generation_gap`: lives of a slot that the
// entries may be missing.
Recovery restore_blocks(CacheCore& core, std::vector<JournalEntry> entries,
                        std::uint64_t generation_gap);

struct DiskTierStart {
  SlotJournal& journal;
  DiskIo& disk;
};
// Restores from the checkpoint and the log, or from the slots' headers if those are not enough.
Result<Recovery> recover_disk_tier(CacheCore& core, DiskTierStart start);

}  // namespace cairn
