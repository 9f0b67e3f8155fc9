#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/strong_id.hpp"
#include "base/unique_function.hpp"
#include "layouts/block_layout.hpp"
#include "layouts/copy_plan.hpp"
#include "transport/io/slot_checksums.hpp"
#include "transport/io/slot_header.hpp"

namespace cairn {

using JobId = StrongId<struct JobIdTag>;

// Who waits for a job. Each class has its share of a route while others wait too, so that none
// starves: see FairQueue.
enum class Urgency : std::uint8_t {
  engine,      // an engine's step waits for its bytes
  client,      // a client waits for its bytes
  allocation,  // a client waits for the room that they leave
  background,  // nobody does
};
inline constexpr std::size_t kNumUrgencies = 4;
// Somebody waits for the bytes themselves.
constexpr bool is_waited_for(Urgency urgency) { return urgency <= Urgency::client; }

enum class JobOperation : std::uint8_t {
  copy,
  // Nothing moves: the slots that are the pairs' destinations get their headers. The source is not
  // looked at, but must be a layout of the same shape.
  write_header,
  // Nothing moves: the slots that are the pairs' sources are read, and fail where they do not have
  // their checksum. The destination is not looked at, but must be a layout of the same shape.
  check,
  // Nothing is copied: the pairs' destinations, in unified memory, go to their device. The source
  // is not looked at, but must be a layout of the same shape. A hint: a pair that did not go is
  // there all the same.
  prefetch,
};

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

// Copies blocks between two layouts of one shape, at most one of them on disk. The layouts, and the
// blocks named, must stay until the completion has run; destination blocks must be nobody else's.
struct TransferJob {
  const BlockLayout* source = nullptr;
  const BlockLayout* destination = nullptr;
  std::vector<BlockPair> pairs;
  JobOperation operation = JobOperation::copy;
  Urgency urgency = Urgency::client;
  std::int32_t priority = 0;  // higher goes first within its class, up to ageing
  // The source is not used where it lies after this: of unified memory, it goes to where the
  // destination is.
  bool source_goes = false;
  // Of the side that lies on disk, in a slot file, if one does: bytes are written with their
  // header, and compared with their checksum when they are read. At most one side may.
  SlotChecksums* slots = nullptr;
  // Of a side that lies on disk: its bytes pass through memory of this process's own, also where
  // the disk reaches the other side. For memory that others may write to, or take away: what is
  // compared with its checksum, and what is written, is then what was copied.
  bool through_staging = false;
  // destination in a slot file: whose the bytes of each pair are; empty: nobody's yet.
  std::vector<BlockHeader> headers;
  // May be empty. Told how many pairs have arrived whenever there are more, on engine threads, one
  // call at a time, all of them before on_complete. It must not block.
  UniqueFunction<void(std::uint32_t pairs_arrived)> on_progress;
  // Runs exactly once for a job that was accepted: on an engine thread, inside cancel(), or in the
  // engine's destructor. It must not block, and may submit further jobs.
  UniqueFunction<void(JobOutcome)> on_complete;
};

}  // namespace cairn
