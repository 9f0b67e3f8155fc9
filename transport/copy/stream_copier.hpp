#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "base/result.hpp"
#include "memory/device_runtime.hpp"
#include "transport/copy/copy_choice.hpp"
#include "transport/copy/device_memory.hpp"
#include "transport/copy/place.hpp"

namespace cairn {

// One stream per device, created on first use and kept from job to job. Not thread-safe.
class StreamSet {
 public:
  // Borrows both; `scratch` may be null.
  explicit StreamSet(DeviceRuntime& runtime, DeviceMemory* scratch = nullptr)
      : runtime_(runtime), scratch_(scratch) {}
  ~StreamSet();
  StreamSet(const StreamSet&) = delete;
  StreamSet& operator=(const StreamSet&) = delete;

  // Creates the stream on first use. Valid until drop_stream().
  Result<Stream*> stream(int device_id);
  // Waits for the stream's work and destroys it. Call after an error, because a stream keeps
  // returning its first error.
  void drop_stream(int device_id);
  DeviceMemory* scratch() const { return scratch_; }

 private:
  DeviceRuntime& runtime_;
  DeviceMemory* const scratch_;
  std::map<int, std::unique_ptr<Stream>> streams_;
};

// Bytes of unified memory prefetched in each direction. Thread-safe.
struct PrefetchCounts {
  std::atomic<std::uint64_t> to_device_bytes{0};
  std::atomic<std::uint64_t> to_host_bytes{0};
};

struct CopyMode {
  CopyStrategy strategy = CopyStrategy::async;  // not `automatic`
  std::uint32_t polling_interval_us = 0;        // for CopyStrategy::polling
  bool source_goes = false;                     // see TransferJob::source_goes
  CopyThresholds thresholds = {};
  MemoryVisibility visibility = MemoryVisibility::system;
  PrefetchCounts* prefetched = nullptr;  // null: not counted
};

struct PlacePart {
  std::uint32_t region = 0;
  RegionView::Part bytes;
};
struct Prefetch {
  int device_id = -1;                // -1: to the host
  PrefetchCounts* counts = nullptr;  // null: not counted
};
// Prefetches parts of unified memory to a device or to the host, merging neighbours into few calls.
// Only a hint. Reorders `parts`.
Result<> prefetch_parts(Stream& stream, const Place& place, std::vector<PlacePart>& parts,
                        Prefetch to);

// Waits as the strategy says.
Result<> wait_for_event(Event& event, const CopyMode& mode);

// Copies blocks between two places in memory on a stream of the set. Borrows its arguments.
class StreamCopier {
 public:
  struct Route {
    Place source;
    Place destination;
  };
  StreamCopier(StreamSet& streams, Route route, CopyMode mode);

  // Issues the copies; the event fires when they have completed. After an error from this or from
  // the event, some bytes may still be moving: call abandon().
  Result<std::unique_ptr<Event>> begin(std::span<const BlockPair> pairs);
  // Waits until nothing issued here is moving. Destroy the events from begin() first.
  void abandon() { streams_.drop_stream(device_id_); }

  // begin(), wait_for_event(), and abandon() if either fails.
  Result<> copy(std::span<const BlockPair> pairs);

 private:
  Result<> prefetch(Stream& stream);
  // The form for the current copies_.
  CopyForm form();

  StreamSet& streams_;
  const Route route_;
  const CopyMode mode_;
  const int device_id_;
  std::vector<CopySpan> spans_;  // of the latest begin(); kept to reuse memory
  std::vector<MemoryCopy> copies_;
  std::vector<MemoryCopy> sorted_;
  std::vector<PlacePart> parts_;
};

// Copies on the calling thread. REQUIRES: the CPU can access both places.
void copy_on_cpu(const StreamCopier::Route& route, std::span<const BlockPair> pairs);

}  // namespace cairn
