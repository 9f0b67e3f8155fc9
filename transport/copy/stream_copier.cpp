#include "transport/copy/stream_copier.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "memory/strided_runs.hpp"

namespace cairn {
namespace {

// A stream of the device that takes part; device 0 for host-to-host copies.
int stream_device(const StreamCopier::Route& route) {
  for (StorageKind wanted : {StorageKind::device, StorageKind::unified}) {
    for (const Place* place : {&route.destination, &route.source}) {
      if (place->kind() == wanted) return std::max(place->device_id(), 0);
    }
  }
  return 0;
}

// Unified memory will be used by its device. -1 is the CPU.
int home_of(const Place& place) { return is_on_device(place.kind()) ? place.device_id() : -1; }

}  // namespace

Result<Stream*> StreamSet::stream(int device_id, StreamUse use) {
  auto found = streams_.find({device_id, use});
  if (found == streams_.end()) {
    auto made = runtime_.create_stream(device_id);
    if (!made) return std::move(made).error();
    found = streams_.emplace(std::pair(device_id, use), std::move(*made)).first;
  }
  return found->second.get();
}

StreamSet::~StreamSet() {
  while (!streams_.empty()) drop_streams(streams_.begin()->first.first);
}

void StreamSet::drop_streams(int device_id) {
  for (const StreamUse use : {StreamUse::bus, StreamUse::within}) {
    auto dropped = streams_.extract({device_id, use});
    if (dropped) memory_.end_stream(device_id, std::move(dropped.mapped()));
  }
}

StreamCopier::StreamCopier(StreamSet& streams, Route route, CopyMode mode, StreamUse use)
    : streams_(streams), route_(route), mode_(mode), device_id_(stream_device(route)), use_(use) {}

Result<std::unique_ptr<Event>> StreamCopier::begin(std::span<const BlockPair> pairs) {
  auto stream = streams_.stream(device_id_, use_);
  if (!stream) return std::move(stream).error();
  spans_.clear();
  plan_copy(*route_.source.geometry, *route_.destination.geometry, pairs, spans_);
  if (mode_.strategy == CopyStrategy::unified) CAIRN_TRY(prefetch(**stream));
  copies_.clear();
  for (const CopySpan& span : spans_) {
    copies_.push_back({.destination = route_.destination.address(span.destination),
                       .source = route_.source.address(span.source),
                       .size_bytes = span.size_bytes});
  }
  CAIRN_TRY(issue(**stream));
  if (mode_.strategy == CopyStrategy::sync) CAIRN_TRY((*stream)->synchronize());
  return (*stream)->record();
}

// The CPU writes the list, so it cannot wait its turn on the stream: it is memory of no stream. It
// is freed here, while the stream may not have begun to read it, and reused when the stream is
// done.
Result<> StreamCopier::issue(Stream& stream) {
  const std::uint64_t list_bytes = stream.list_bytes(copies_.size());
  if (list_bytes == 0) return stream.copy(copies_, form());
  auto list = streams_.memory().allocate(device_id_, list_bytes);
  // Without room on the device, the stream keeps the list.
  if (!list || !list->record_stream(stream)) return stream.copy(copies_, form());
  return stream.copy(copies_, form(), list->view());
}

CopyForm StreamCopier::form() {
  CopyFacts facts{.kinds = {route_.source.kind(), route_.destination.kind()},
                  .pieces = copies_.size()};
  for (const MemoryCopy& copy : copies_) facts.bytes += copy.size_bytes;
  const FormThresholds* const thresholds = thresholds_of(facts.kinds, mode_.thresholds);
  if (thresholds != nullptr && thresholds->rows_least_rows != 0) {
    sorted_ = copies_;
    facts.strided_runs = find_strided_runs(sorted_).size();
  }
  return choose_form(facts, mode_.thresholds, mode_.visibility);
}

Result<> prefetch_parts(Stream& stream, const Place& place, std::vector<PlacePart>& parts,
                        Prefetch to) {
  std::sort(parts.begin(), parts.end(), [](const PlacePart& a, const PlacePart& b) {
    return std::pair(a.region, a.bytes.offset_bytes) < std::pair(b.region, b.bytes.offset_bytes);
  });
  for (std::size_t i = 0; i < parts.size();) {
    PlacePart run = parts[i];
    for (++i; i < parts.size() && parts[i].region == run.region &&
              parts[i].bytes.offset_bytes == run.bytes.offset_bytes + run.bytes.size_bytes;
         ++i) {
      run.bytes.size_bytes += parts[i].bytes.size_bytes;
    }
    auto bytes = place.regions[run.region].view(run.bytes);
    if (!bytes) return std::move(bytes).error();
    CAIRN_TRY(stream.prefetch(*bytes, to.device_id));
    if (to.counts == nullptr) continue;
    (to.device_id < 0 ? to.counts->to_host_bytes : to.counts->to_device_bytes) +=
        run.bytes.size_bytes;
  }
  return {};
}

Result<> StreamCopier::prefetch(Stream& stream) {
  const Prefetch to{home_of(route_.destination), mode_.prefetched};
  const auto send = [&](const Place& place, PieceLocation CopySpan::*side) -> Result<> {
    if (place.kind() != StorageKind::unified) return {};
    parts_.clear();
    for (const CopySpan& span : spans_) {
      const PieceLocation at = span.*side;
      parts_.push_back({at.region, {at.offset_bytes, span.size_bytes}});
    }
    return prefetch_parts(stream, place, parts_, to);
  };
  // If the source stays, copy it from where it is.
  if (mode_.source_goes) CAIRN_TRY(send(route_.source, &CopySpan::source));
  return send(route_.destination, &CopySpan::destination);
}

Result<> wait_for_event(Event& event, const CopyMode& mode) {
  if (mode.strategy != CopyStrategy::polling) return event.wait();
  ::prctl(PR_SET_TIMERSLACK, 1UL);  // the default adds 50 us to every sleep
  while (true) {
    auto ready = event.ready();
    if (!ready) return std::move(ready).error();
    if (*ready) return {};
    std::this_thread::sleep_for(std::chrono::microseconds(mode.polling_interval_us));
  }
}

void copy_on_cpu(const StreamCopier::Route& route, std::span<const BlockPair> pairs) {
  std::vector<CopySpan> spans;
  plan_copy(*route.source.geometry, *route.destination.geometry, pairs, spans);
  for (const CopySpan& span : spans) {
    std::memcpy(route.destination.address(span.destination), route.source.address(span.source),
                span.size_bytes);
  }
}

}  // namespace cairn
