#include "blockmgr/disk_tier/disk_checkpoint.hpp"

#include "blockmgr/core/cache_core.hpp"
#include "blockmgr/disk/learnt_file.hpp"
#include "blockmgr/disk_tier/kept_pins.hpp"
#include "transport/io/slot_file.hpp"

namespace cairn {
namespace {

// Slots written at a time, and slots described under one hold of the lock.
constexpr std::uint32_t kStep = 2048;
constexpr std::uint32_t kHeldStep = 128;

// An error here loses what was learned, but does not fail the checkpoint.
void keep_learnt(CacheCore& core) {
  std::vector<std::byte> learnt;
  {
    CacheLock locked(core, LockUse::upkeep);
    learnt = locked->store.learnt();
  }
  const auto kept = write_learnt({core.disk_files.front(), core.slot_contents->file_id()}, learnt);
  if (kept) return;
  core.services->log.warning("could not write what the order of eviction has learned",
                             {{"cache", core.config.name}, {"detail", kept.error().detail}});
}

// The same for pins.
void keep_pins_or_say(CacheCore& core) {
  const auto kept = keep_pins(core);
  if (kept) return;
  core.services->log.warning("could not write the pins of a cache",
                             {{"cache", core.config.name}, {"detail", kept.error().detail}});
}

}  // namespace

Result<> checkpoint(CacheCore& core) {
  if (!core.slot_contents) return {};
  SlotJournal* const journal = core.journal.get();
  MutexLock only_one(core.checkpointing);
  std::uint64_t log_number = 0;
  {
    // A removed cache's files are removed with it.
    CacheLock locked(core, LockUse::upkeep);
    if (locked->dropped) return {};
    log_number = journal->reserve_number();
  }
  auto fresh = journal->make_log(log_number);
  {
    CacheLock locked(core, LockUse::upkeep);
    if (!fresh) {
      journal->return_number(log_number);
      // With the spare log the checkpoint continues, and deletes the older logs to make room.
      if (!journal->has_spare()) return std::move(fresh).error();
    }
    CAIRN_TRY(locked.check_usable());
    journal->switch_log(fresh ? std::move(*fresh) : nullptr);
  }
  core.options().failpoint("checkpoint.begun");
  const auto write_all = [&]() -> Result<> {
    CAIRN_TRY(journal->start_checkpoint());
    std::vector<std::byte> entries;
    // Slots added meanwhile are in the new log.
    const std::uint32_t num_slots = core.slot_contents->num_slots();
    for (std::uint32_t first = 0; first < num_slots; first += kStep) {
      entries.clear();
      {
        CacheLock locked(core, LockUse::upkeep);
        CAIRN_TRY(locked.check_usable());
        const std::uint32_t end = std::min(num_slots - first, kStep) + first;
        for (std::uint32_t slot = first; slot < end; ++slot) {
          if (slot > first && slot % kHeldStep == 0) {
            locked.yield();
            CAIRN_TRY(locked.check_usable());
          }
          locked->store.describe_disk_slot(slot, [&](const JournalEntry& entry) {
            const std::size_t at = entries.size();
            entries.resize(at + encoded_bytes(entry));
            encode(entry, journal->checkpoint_seed(), std::span(entries).subspan(at));
          });
        }
      }
      CAIRN_TRY(journal->write(entries));
    }
    keep_learnt(core);
    keep_pins_or_say(core);
    core.options().failpoint("checkpoint.written");
    // After a power cut, every block in the checkpoint must be on disk. So flush the blocks first.
    CAIRN_TRY(flush_slot_file(core.services->scheduler.disk(), core.slots(Tier::disk)));
    return journal->finish_checkpoint();
  };
  Result<> written = write_all();
  if (!written) journal->abandon_checkpoint();
  core.options().failpoint("checkpoint.ended");
  return written;
}

}  // namespace cairn
