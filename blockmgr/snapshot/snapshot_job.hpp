#pragma once

#include <atomic>
#include <cstdint>

#include "base/result.hpp"
#include "blockmgr/core/cache_core.hpp"
#include "blockmgr/snapshot/snapshot_reader.hpp"
#include "blockmgr/snapshot/snapshot_writer.hpp"

// Internal: the two jobs of snapshots. Each runs on its own thread, waits there for disks and
// devices, and holds a few blocks at a time.
namespace cairn {

// Reports a job's progress and cancels the job. Thread-safe.
class SnapshotProgress {
 public:
  SnapshotProgress(TransferTable& table, TransferId id) : table_(table), id_(id) {}
  TransferId id() const { return id_; }
  void cancel() { cancelled_ = true; }
  Result<> check_wanted() const {
    if (!cancelled_) return {};
    return Error{ErrorCode::cancelled, "the snapshot's job was cancelled"};
  }
  void set_total(std::uint64_t blocks) { table_.set_total(id_, blocks); }
  void add(TransferTable::Arrived arrived) { table_.add(id_, arrived); }
  void add(TransferStatus::Failure failure) { table_.add(id_, std::move(failure)); }

 private:
  TransferTable& table_;
  const TransferId id_;
  std::atomic<bool> cancelled_{false};
};

// Appends the blocks that are in the cache now and still are when their turn comes. Pins blocks in
// place while they are written. A block that cannot be read fails the job.
Result<> save_blocks(CacheCore& core, Cache& cache, SnapshotWriter& writer,
                     SnapshotProgress& progress);

// How many blocks of a snapshot a cache would take.
struct SnapshotFit {
  std::uint64_t wanted = 0;   // not expired
  std::uint64_t missing = 0;  // of those, not in the cache
  std::uint64_t room = 0;     // free slots of all tiers
};
// Errors: state_conflict for different shapes; out_of_range for metadata that the cache does not
// take. REQUIRES: load_index().
Result<SnapshotFit> fit(CacheCore& core, const Cache& cache, SnapshotReader& reader);

// Checks every block of the file, then loads those that the cache lacks: only into free slots, as
// its least recently used. With `partial`, blocks without room are left out, from the end.
Result<> load_blocks(std::shared_ptr<Cache> cache, SnapshotReader& reader, bool partial,
                     SnapshotProgress& progress);

}  // namespace cairn
