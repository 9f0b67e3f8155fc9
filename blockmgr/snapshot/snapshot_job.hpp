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

class Cache;

// Reports a job's progress and cancels the job. Thread-safe.
class SnapshotProgress {
 public:
  SnapshotProgress(TransferTable& table, TransferId id) : table_(table), id_(id) {}
  TransferId id() const { return id_; }
  // Has no effect once the job has begun a change that it must bring to its end.
  void cancel() {
    auto expected = Wish::go_on;
    wish_.compare_exchange_strong(expected, Wish::end);
  }
  void stop() { wish_ = Wish::end; }  // even then: the server ends
  Result<> check_wanted() const {
    if (wish_ != Wish::end) return {};
    return Error{ErrorCode::cancelled, "the snapshot's job was cancelled"};
  }
  // From now on the job cannot be cancelled. Error: cancelled if it was.
  Result<> begin_change() {
    auto expected = Wish::go_on;
    wish_.compare_exchange_strong(expected, Wish::finish);
    return check_wanted();
  }
  void set_total(std::uint64_t blocks) { table_.set_total(id_, blocks); }
  void add(TransferTable::Arrived arrived) { table_.add(id_, arrived); }
  void add(TransferStatus::Failure failure) { table_.add(id_, std::move(failure)); }

 private:
  TransferTable& table_;
  const TransferId id_;
  enum class Wish : std::uint8_t { go_on, finish, end };
  std::atomic<Wish> wish_{Wish::go_on};
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

// Where the blocks of a snapshot go in a cache that is emptied first.
class ReplacementPlan;
struct SnapshotReplacement {
  std::shared_ptr<const ReplacementPlan> plan = {};
  std::uint64_t wanted = 0;  // not expired
  std::uint64_t placed = 0;  // of those, with room
  std::int64_t unix_ms = 0;  // blocks that had expired then are left out
};
// Errors: as fit(). REQUIRES: load_index().
Result<SnapshotReplacement> plan_replacement(CacheCore& core, SnapshotReader& reader);
// Checks every block of the file, then drops all blocks of the cache and loads the planned ones.
// Until the drop, an error changes nothing and the job can be cancelled. After it, an error leaves
// the blocks that were loaded before. Errors: as load_blocks() and empty_for().
Result<> replace_blocks(std::shared_ptr<Cache> cache, SnapshotReader& reader,
                        const SnapshotReplacement& replacement, SnapshotProgress& progress);

// Checks every block of the file, then loads those that the cache lacks: only into free slots, as
// its least recently used. With `partial`, blocks without room are left out, from the end.
Result<> load_blocks(std::shared_ptr<Cache> cache, SnapshotReader& reader, bool partial,
                     SnapshotProgress& progress);

}  // namespace cairn
