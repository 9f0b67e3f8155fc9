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

// What an engine thread keeps from job to job: a stream for each device it has used. Used by one
// thread at a time.
class StreamSet {
 public:
  // Borrows both; `scratch` may be null.
  explicit StreamSet(DeviceRuntime& runtime, DeviceMemory* scratch = nullptr)
      : runtime_(runtime), scratch_(scratch) {}
  ~StreamSet();
  StreamSet(const StreamSet&) = delete;
  StreamSet& operator=(const StreamSet&) = delete;

  // The stream of a device, made at first use; valid until it is dropped.
  Result<Stream*> stream(int device_id);
  // Waits for what was issued on it. After an error: a stream reports its first one for ever.
  void drop_stream(int device_id);
  DeviceMemory* scratch() const { return scratch_; }

 private:
  DeviceRuntime& runtime_;
  DeviceMemory* const scratch_;
  std::map<int, std::unique_ptr<Stream>> streams_;
};

// Bytes of unified memory that were sent to where they are used. Thread-safe.
struct PrefetchCounts {
  std::atomic<std::uint64_t> to_device_bytes{0};
  std::atomic<std::uint64_t> to_host_bytes{0};
};

struct CopyMode {
  CopyStrategy strategy = CopyStrategy::async;  // not `automatic`
  std::uint32_t polling_interval_us = 0;        // of CopyStrategy::polling
  bool source_goes = false;                     // as TransferJob::source_goes
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
// Sends these parts of a place in unified memory to a device or to the host: a hint, issued in as
// few calls as their neighbourhood lets. Changes the order of `parts`.
Result<> prefetch_parts(Stream& stream, const Place& place, std::vector<PlacePart>& parts,
                        Prefetch to);

// Waits for an event as the strategy does.
Result<> wait_for_event(Event& event, const CopyMode& mode);

// Copies blocks between two places in memory on a stream of the set. Borrows all it is given.
class StreamCopier {
 public:
  struct Route {
    Place source;
    Place destination;
  };
  StreamCopier(StreamSet& streams, Route route, CopyMode mode);

  // Issues the copies of these pairs; the event is ready when their bytes have arrived. After an
  // error of this or of the event some bytes may still be moving: abandon().
  Result<std::unique_ptr<Event>> begin(std::span<const BlockPair> pairs);
  // Waits until nothing issued here moves any more. No event of begin() may be left.
  void abandon() { streams_.drop_stream(device_id_); }

  // begin() and wait_for_event(), and abandon() where either failed.
  Result<> copy(std::span<const BlockPair> pairs);

 private:
  Result<> prefetch(Stream& stream);
  // For the copies_ of this begin().
  CopyForm form();

  StreamSet& streams_;
  const Route route_;
  const CopyMode mode_;
  const int device_id_;
  std::vector<CopySpan> spans_;  // of the latest begin(), kept for their memory
  std::vector<MemoryCopy> copies_;
  std::vector<MemoryCopy> sorted_;
  std::vector<PlacePart> parts_;
};

// The same by this thread, between places that the CPU reaches.
void copy_on_cpu(const StreamCopier::Route& route, std::span<const BlockPair> pairs);

}  // namespace cairn
