#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "memory/device_runtime.hpp"
#include "transport/copy/copy_choice.hpp"
#include "transport/copy/device_memory.hpp"
#include "transport/copy/place.hpp"

namespace cairn {

// Each device has one stream for copies over the bus and one for copies within the device, so that
// either can wait for the other.
enum class StreamUse : std::uint8_t { bus, within };

// The streams of one transfer: one per device and use, created on first use and kept from job to
// job. Not thread-safe.
class StreamSet {
 public:
  // Borrows both.
  StreamSet(DeviceRuntime& runtime, DeviceMemory& memory) : runtime_(runtime), memory_(memory) {}
  ~StreamSet();
  StreamSet(const StreamSet&) = delete;
  StreamSet& operator=(const StreamSet&) = delete;

  // Creates the stream on first use. Valid until drop_streams().
  Result<Stream*> stream(int device_id, StreamUse use = StreamUse::bus);
  // Waits for the work of the device's streams and destroys them. Call after an error, because a
  // stream keeps returning its first error.
  void drop_streams(int device_id);
  DeviceMemory& memory() const { return memory_; }

 private:
  DeviceRuntime& runtime_;
  DeviceMemory& memory_;
  std::map<std::pair<int, StreamUse>, std::unique_ptr<Stream>> streams_;
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
  StreamCopier(StreamSet& streams, Route route, CopyMode mode, StreamUse use = StreamUse::bus);

  // Issues the copies; the event fires when they have completed. After an error from this or from
  // the event, some bytes may still be moving: call abandon().
  Result<std::unique_ptr<Event>> begin(std::span<const BlockPair> pairs);
  // Waits until nothing issued here is moving. Destroy the events from begin() first.
  void abandon() { streams_.drop_streams(device_id_); }

 private:
  Result<> prefetch(Stream& stream);
  // The form for the current copies_.
  CopyForm form();
  // Issues the current copies_. Their list lies in device memory if the stream has a use for it.
  Result<> issue(Stream& stream);

  StreamSet& streams_;
  const Route route_;
  const CopyMode mode_;
  const int device_id_;
  const StreamUse use_;
  std::vector<CopySpan> spans_;  // of the latest begin(); kept to reuse memory
  std::vector<MemoryCopy> copies_;
  std::vector<MemoryCopy> sorted_;
  std::vector<PlacePart> parts_;
};

// Copies on the calling thread. REQUIRES: the CPU can access both places.
void copy_on_cpu(const StreamCopier::Route& route, std::span<const BlockPair> pairs);

}  // namespace cairn
