// Makes the index of a disk tier durable.
#include "blockmgr/cache/cache_core.hpp"
#include "blockmgr/disk/learnt_file.hpp"
#include "transport/io/slot_file.hpp"

namespace cairn {
namespace {

// Slots written at a time, and slots described under one hold of the lock.
constexpr std::uint32_t kStep = 2048;
constexpr std::uint32_t kHeldStep = 128;

}  // namespace

// An error here loses what was learned, but does not fail the checkpoint.
void CacheCore::keep_learnt() {
  std::vector<std::byte> learnt;
  {
    Section section(*this, LockUse::upkeep);
    learnt = section->store.learnt();
  }
  const auto kept = write_learnt({disk_files.front(), slot_checksums->file_id()}, learnt);
  if (kept) return;
  services->log.warning("could not write what the order of eviction has learned",
                        {{"cache", config.name}, {"detail", kept.error().detail}});
}

Result<> CacheCore::checkpoint() {
  if (!slot_checksums) return {};
  MutexLock only_one(checkpointing);
  std::uint64_t log_number = 0;
  {
    // A removed cache's files are removed with it.
    Section section(*this, LockUse::upkeep);
    if (section->dropped) return {};
    log_number = journal->reserve_number();
  }
  auto fresh = journal->make_log(log_number);
  {
    Section section(*this, LockUse::upkeep);
    if (!fresh) {
      journal->return_number(log_number);
      // With the spare log the checkpoint continues, and deletes the older logs to make room.
      if (!journal->has_spare()) return std::move(fresh).error();
    }
    CAIRN_TRY(section.check_usable());
    journal->switch_log(fresh ? std::move(*fresh) : nullptr);
  }
  options().failpoint("checkpoint.begun");
  const auto write_all = [&]() -> Result<> {
    CAIRN_TRY(journal->start_checkpoint());
    std::vector<std::byte> entries;
    // Slots added meanwhile are in the new log.
    const std::uint32_t num_slots = slot_checksums->num_slots();
    for (std::uint32_t first = 0; first < num_slots; first += kStep) {
      entries.clear();
      {
        Section section(*this, LockUse::upkeep);
        CAIRN_TRY(section.check_usable());
        const std::uint32_t end = std::min(num_slots - first, kStep) + first;
        for (std::uint32_t slot = first; slot < end; ++slot) {
          if (slot > first && slot % kHeldStep == 0) {
            section.give_way();
            CAIRN_TRY(section.check_usable());
          }
          section->store.describe_disk_slot(slot, [&](const JournalEntry& entry) {
            const std::size_t at = entries.size();
            entries.resize(at + encoded_bytes(entry));
            encode(entry, journal->checkpoint_seed(), std::span(entries).subspan(at));
          });
        }
      }
      CAIRN_TRY(journal->write(entries));
    }
    keep_learnt();
    options().failpoint("checkpoint.written");
    // After a power cut, every block in the checkpoint must be on disk. So flush the blocks first.
    CAIRN_TRY(flush_slot_file(services->engine.disk(), layout(Tier::disk)));
    return journal->finish_checkpoint();
  };
  Result<> written = write_all();
  if (!written) journal->abandon_checkpoint();
  options().failpoint("checkpoint.ended");
  return written;
}

}  // namespace cairn
