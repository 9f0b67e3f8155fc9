#include "transport/copy/stream_copier.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "memory/strided_runs.hpp"

namespace cairn {
namespace {

// A copy runs on a stream of the device that takes part; host-to-host copies use the first one's.
int stream_device(const StreamCopier::Route& route) {
  for (StorageKind wanted : {StorageKind::device, StorageKind::unified}) {
    for (const Place* place : {&route.destination, &route.source}) {
      if (place->kind() == wanted) return std::max(place->device_id(), 0);
    }
  }
  return 0;
}

// Where unified memory is to be while it is copied: at the side that cannot move, or where the
// destination lives. -1 is the CPU.
int prefetch_target(const StreamCopier::Route& route) {
  for (const Place* place : {&route.destination, &route.source}) {
    if (place->kind() != StorageKind::unified) {
      return place->kind() == StorageKind::device ? place->device_id() : -1;
    }
  }
  return route.destination.device_id();
}

}  // namespace

Result<Stream*> StreamSet::stream(int device_id) {
  auto found = streams_.find(device_id);
  if (found == streams_.end()) {
    auto made = runtime_.create_stream(device_id);
    if (!made) return std::move(made).error();
    found = streams_.emplace(device_id, std::move(*made)).first;
  }
  return found->second.get();
}

StreamSet::~StreamSet() {
  while (!streams_.empty()) drop_stream(streams_.begin()->first);
}

void StreamSet::drop_stream(int device_id) {
  auto dropped = streams_.extract(device_id);
  if (dropped && scratch_ != nullptr) scratch_->end_stream(device_id, std::move(dropped.mapped()));
}

StreamCopier::StreamCopier(StreamSet& streams, Route route, CopyMode mode)
    : streams_(streams), route_(route), mode_(mode), device_id_(stream_device(route)) {}

Result<std::unique_ptr<Event>> StreamCopier::begin(std::span<const BlockPair> pairs) {
  auto stream = streams_.stream(device_id_);
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
  CAIRN_TRY((*stream)->copy(copies_, form()));
  return (*stream)->record();
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

Result<> StreamCopier::prefetch(Stream& stream) const {
  const int target = prefetch_target(route_);
  const auto fetch = [&](const Place& place, PieceLocation at,
                         std::uint64_t size_bytes) -> Result<> {
    if (place.kind() != StorageKind::unified) return {};
    auto part = place.regions[at.region].view({at.offset_bytes, size_bytes});
    if (!part) return std::move(part).error();
    return stream.prefetch(*part, target);
  };
  for (const CopySpan& span : spans_) {
    CAIRN_TRY(fetch(route_.source, span.source, span.size_bytes));
    CAIRN_TRY(fetch(route_.destination, span.destination, span.size_bytes));
  }
  return {};
}

Result<> StreamCopier::wait(Event& event) const {
  if (mode_.strategy != CopyStrategy::polling) return event.wait();
  while (true) {
    auto ready = event.ready();
    if (!ready) return std::move(ready).error();
    if (*ready) return {};
    std::this_thread::sleep_for(std::chrono::microseconds(mode_.polling_interval_us));
  }
}

Result<> StreamCopier::copy(std::span<const BlockPair> pairs) {
  Result<> copied;
  if (auto event = begin(pairs)) {
    copied = wait(**event);
  } else {
    copied = std::move(event).error();
  }
  if (!copied) abandon();
  return copied;
}

}  // namespace cairn
