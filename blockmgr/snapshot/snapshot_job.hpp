#pragma once

#include <atomic>
#include <cstdint>

#include "base/result.hpp"
#include "blockmgr/cache/cache_core.hpp"
#include "blockmgr/snapshot/snapshot_reader.hpp"
#include "blockmgr/snapshot/snapshot_writer.hpp"

// Inside of the module: the two jobs of snapshots. Each runs on a thread of its own, waits there
// for disks and devices, and holds a few blocks at a time.
namespace cairn {

// What a job tells of itself, and whether it is still wanted. Thread-safe.
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

// Appends the blocks that are there now and still are when their turn comes. What is written is
// pinned in place; a block that cannot be read ends the job.
Result<> save_blocks(CacheCore& core, Cache& cache, SnapshotWriter& writer,
                     SnapshotProgress& progress);

// How many of a snapshot's blocks a cache is to take.
struct SnapshotFit {
  std::uint64_t wanted = 0;   // that have not expired
  std::uint64_t missing = 0;  // of those, not in the cache
  std::uint64_t room = 0;     // free slots of all tiers
};
// state_conflict where the shapes differ; out_of_range for metadata that the cache would not take.
// REQUIRES: load_index().
Result<SnapshotFit> fit(CacheCore& core, const Cache& cache, SnapshotReader& reader);

// Checks every block of the file, then brings those into the cache that it lacks: into free slots
// only, as its least recently used. With `partial` what finds no room is left out, from the end.
Result<> load_blocks(std::shared_ptr<Cache> cache, SnapshotReader& reader, bool partial,
                     SnapshotProgress& progress);

}  // namespace cairn
