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
#include "transport/io/slot_contents.hpp"
#include "transport/io/slot_header.hpp"
#include "transport/record/medium_codec.hpp"

namespace cairn {

using JobId = StrongId<struct JobIdTag>;

// The class of client that waits for a job. Each class gets a share of a route, so that none
// starves: see FairQueue.
enum class Urgency : std::uint8_t {
  engine,      // an engine's step waits for its bytes
  client,      // a client waits for its bytes
  allocation,  // a client waits for the room it frees
  prefetch,    // a request will need its bytes soon
  background,  // nobody waits
};
inline constexpr std::size_t kNumUrgencies = 5;
// True if somebody waits for the bytes themselves.
constexpr bool is_waited_for(Urgency urgency) { return urgency <= Urgency::client; }

// Somebody else waits for a job too. Values below the job's own change nothing.
struct Raise {
  std::int32_t priority = 0;
  Urgency urgency = Urgency::background;
};

enum class JobOperation : std::uint8_t {
  copy,
  // Writes the headers of the destination slots; no data moves. The source is unused, but must be a
  // layout of the same shape.
  write_header,
  // Reads the source slots and fails those that do not match their checksum; no data moves. The
  // destination is unused, but must be a layout of the same shape.
  check,
  // Moves the destination's pages, in unified memory, to their device. The source is unused, but
  // must be a layout of the same shape. Only a hint: blocks stay valid if it fails.
  prefetch,
};

enum class JobState : std::uint8_t { done, failed, cancelled };

struct BlockFailure {
  std::uint32_t index = 0;  // in TransferJob::pairs
  Error error;
};

struct JobOutcome {
  JobState state = JobState::done;
  // - done: empty.
  // - failed: every pair that did not arrive completely, sorted by index; the others arrived.
  // - cancelled: empty, nothing was copied.
  std::vector<BlockFailure> failures;
  bool begun = false;             // false: nothing was copied
  std::uint64_t bytes_moved = 0;  // of pairs that arrived
  Duration queued{};
  Duration running{};
};

// Copies blocks between two layouts of the same shape, at most one of them on disk. The layouts and
// blocks must stay valid until the completion has run; nobody else may use the destination blocks.
struct TransferJob {
  const BlockLayout* source = nullptr;
  const BlockLayout* destination = nullptr;
  std::vector<BlockPair> pairs;
  JobOperation operation = JobOperation::copy;
  Urgency urgency = Urgency::client;
  // Source on disk: copies only this range of each block's outer dimension; the destination has the
  // shape of that range. The whole block is read and compared with its checksum.
  std::optional<Geometry::Outers> source_outers = {};
  std::int32_t priority = 0;  // higher goes first within its class, but waiting jobs age
  // The source is not used in place afterwards. If it is unified memory, its pages move to the
  // destination's location.
  bool source_goes = false;
  // The slot file of the side on disk, else null. Data is written with its header, and verified
  // against its checksum when read.
  SlotContents* slots = nullptr;
  // That slot file's codec; null: blocks are written as they are, and none is encoded.
  MediumCodec* codec = nullptr;
  // Disk transfers go through this process's own memory, even if the disk could access the other
  // side directly. For memory that others may write or unmap: then the bytes checked or written are
  // the bytes copied.
  bool through_staging = false;
  // Destination on disk: the header of each pair's block. Empty: blocks without a key yet. The
  // mover fills in the file, the slot, the length and the checksum.
  std::vector<SlotHeader> headers;
  // May be empty. Called with the number of pairs arrived so far, on scheduler threads, one call at
  // a time, always before on_complete. Must not block.
  UniqueFunction<void(std::uint32_t pairs_arrived)> on_progress;
  // Called exactly once for an accepted job: on a scheduler thread, inside cancel(), or in the
  // scheduler's destructor. Must not block; may submit jobs.
  UniqueFunction<void(JobOutcome)> on_complete;
};

}  // namespace cairn
