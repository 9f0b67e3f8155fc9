// The index of a disk tier, made durable.
#include "blockmgr/cache_core.hpp"
#include "transport/slot_file.hpp"

namespace cairn {
namespace {

// Slots that are described under one hold of the lock.
constexpr std::uint32_t kStep = 2048;

}  // namespace

Result<> CacheCore::checkpoint() {
  if (!disk_slots) return {};
  MutexLock only_one(checkpointing);
  {
    // The files of a cache that was removed go with it.
    MutexLock lock(mutex);
    if (dropped) return {};
  }
  CAIRN_TRY(journal->prepare_log());
  {
    MutexLock lock(mutex);
    CAIRN_TRY(check_usable());
    journal->switch_log();
  }
  options().reached("checkpoint.begun");
  const auto write_all = [&]() -> Result<> {
    CAIRN_TRY(journal->start_checkpoint());
    std::vector<std::byte> records;
    for (std::uint32_t first = 0; first < disk_slots->num_slots(); first += kStep) {
      records.clear();
      {
        MutexLock lock(mutex);
        CAIRN_TRY(check_usable());
        const std::uint32_t end = std::min(disk_slots->num_slots() - first, kStep) + first;
        for (std::uint32_t slot = first; slot < end; ++slot) {
          store.describe_disk_slot(slot, [&](const SlotRecordView& record) {
            const std::size_t at = records.size();
            records.resize(at + encoded_bytes(record));
            encode(record, journal->checkpoint_seed(), std::span(records).subspan(at));
          });
        }
      }
      CAIRN_TRY(journal->write(records));
    }
    options().reached("checkpoint.written");
    // What the checkpoint promises must be there after a power cut: its blocks before it.
    CAIRN_TRY(flush_slot_file(layout(Tier::disk)));
    return journal->finish_checkpoint();
  };
  Result<> written = write_all();
  if (!written) journal->abandon_checkpoint();
  options().reached("checkpoint.ended");
  return written;
}

}  // namespace cairn
