#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/strong_id.hpp"
#include "base/unique_function.hpp"
#include "layouts/block_layout.hpp"
#include "layouts/copy_plan.hpp"
#include "transport/disk_slots.hpp"
#include "transport/slot_header.hpp"

namespace cairn {

using JobId = StrongId<struct JobIdTag>;

// How the bytes of a memory-to-memory job move. Jobs with a side on disk use DiskIo for that side,
// and count it as pinned memory where a strategy asks what the sides are.
enum class CopyStrategy : std::uint8_t {
  automatic,  // chosen by the engine from the storage kinds
  sync,       // on a worker thread, by the CPU; both sides host-accessible
  stream,     // asynchronously on a runtime stream, the event waited for
  polling,    // on a runtime stream, the event asked every polling interval
  unified,    // prefetched to where it will be used, then copied on a stream; one side unified
};

// Loads (towards the device) go before stores: somebody is waiting for a load.
enum class JobKind : std::uint8_t { load, store };

enum class JobState : std::uint8_t { done, failed, cancelled };

struct BlockFailure {
  std::uint32_t index = 0;  // in TransferJob::pairs
  Error error;
};

struct JobOutcome {
  JobState state = JobState::done;
  // done: empty. failed: every pair whose bytes did not all arrive, by rising index; the others
  // did. cancelled: empty, nothing was copied.
  std::vector<BlockFailure> failures;
  bool begun = false;             // else nothing was copied, whatever the state
  std::uint64_t bytes_moved = 0;  // of pairs that arrived
  Duration queued{};
  Duration running{};
};

// Copies blocks between two layouts of one shape. The layouts, and the blocks named, must stay
// until the completion has run; destination blocks must be nobody else's.
struct TransferJob {
  const BlockLayout* source = nullptr;
  const BlockLayout* destination = nullptr;
  std::vector<BlockPair> pairs;
  JobKind kind = JobKind::load;
  std::int32_t priority = 0;          // higher goes first within its kind
  std::optional<TimePoint> deadline;  // not begun by then: failed with deadline_exceeded
  CopyStrategy strategy = CopyStrategy::automatic;
  // Of the side that lies in a slot file, if one does: bytes are written with their header, and
  // compared with their checksum when they are read. At most one side may.
  DiskSlots* slots = nullptr;
  // destination in a slot file: whose the bytes of each pair are; empty: nobody's yet.
  std::vector<SlotLabel> labels;
  // Nothing moves: the slots that are the pairs' destinations get their labels. The source is not
  // looked at, but must be a layout of the same shape.
  bool only_labels = false;
  // Nothing moves: the slots that are the pairs' sources are read, and fail where they do not have
  // their checksum. The destination is not looked at, but must be a layout of the same shape.
  bool only_check = false;
  // May be empty. Told how many pairs have arrived whenever there are more, on engine threads, one
  // call at a time, all of them before on_complete. It must not block.
  UniqueFunction<void(std::uint32_t pairs_arrived)> on_progress;
  // Runs exactly once for a job that was accepted: on an engine thread, inside cancel() or
  // expire_overdue(), or in the engine's destructor. It must not block, and may submit further
  // jobs.
  UniqueFunction<void(JobOutcome)> on_complete;
};

}  // namespace cairn
