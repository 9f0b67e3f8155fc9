#include "transport/copy/form_meter.hpp"

#include <algorithm>
#include <chrono>
#include <string>

#include "transport/copy/stream_copier.hpp"

namespace cairn {
namespace {

// Uneven, so that runs do not join up at their own pitch.
constexpr std::uint64_t kGapBytes = 512;

Result<> take(Result<Region> made, Region& into) {
  if (!made) return std::move(made).error();
  into = std::move(*made);
  return {};
}

Result<> finish(Stream& stream) {
  auto event = stream.record();
  if (!event) return std::move(event).error();
  return (*event)->wait();
}

double per_second(std::uint64_t bytes, Duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return static_cast<double>(bytes) / std::max(seconds, 1e-9);
}

}  // namespace

Result<FormMeter> FormMeter::make(DeviceRuntime& runtime, const Clock& clock, Options options) {
  FormMeter meter(clock, options);
  const int device = options.device_id;
  const DeviceRuntime::PinnedOptions near{.numa_aware = true, .device_id = device};
  const std::uint64_t bytes = options.most_job_bytes;
  // Destinations have gaps as large as the pieces.
  CAIRN_TRY(take(runtime.allocate_pinned(bytes, near), meter.pinned_source_));
  CAIRN_TRY(take(runtime.allocate_pinned(2 * bytes, near), meter.pinned_destination_));
  CAIRN_TRY(take(runtime.allocate_device(bytes, {.device_id = device}), meter.device_source_));
  CAIRN_TRY(
      take(runtime.allocate_device(2 * bytes, {.device_id = device}), meter.device_destination_));
  // Not every device supports it.
  if (auto unified = runtime.allocate_unified(device, bytes)) meter.unified_ = std::move(*unified);
  for (std::unique_ptr<Stream>* stream : {&meter.stream_, &meter.other_}) {
    auto made = runtime.create_stream(device);
    if (!made) return std::move(made).error();
    *stream = std::move(*made);
  }
  return meter;
}

FormMeter::Sides FormMeter::sides(CopyWay way) const {
  return {way == CopyWay::store ? pinned_destination_.data() : device_destination_.data(),
          way == CopyWay::load ? pinned_source_.data() : device_source_.data()};
}

Result<double> FormMeter::rate(const FormRun& run) {
  const std::uint64_t gap_bytes = std::min(kGapBytes, run.piece_bytes);
  if (run.pieces == 0 || run.piece_bytes == 0 ||
      run.pieces > options_.most_job_bytes / run.piece_bytes) {
    return Error{ErrorCode::out_of_range, std::to_string(run.pieces) + " pieces of " +
                                              std::to_string(run.piece_bytes) +
                                              " bytes: a run has 1 to " +
                                              std::to_string(options_.most_job_bytes) + " bytes"};
  }
  const Sides at = sides(run.way);
  std::vector<MemoryCopy> copies;
  std::uint64_t to = 0;
  for (std::uint64_t i = 0; i < run.pieces; ++i) {
    // A step of another length ends the run of rows.
    const bool ends_run = run.rows != 0 && (i + 1) % run.rows == 0;
    copies.push_back({at.destination + to, at.source + i * run.piece_bytes, run.piece_bytes});
    to += run.piece_bytes + (ends_run ? gap_bytes / 2 : gap_bytes);
  }
  return best_rate(copies, run.form);
}

Result<double> FormMeter::rate(const StrategyRun& run) {
  if (run.bytes == 0 || run.bytes > options_.most_job_bytes) {
    return Error{ErrorCode::out_of_range, "a run of " + std::to_string(run.bytes) +
                                              " bytes; it has 1 to " +
                                              std::to_string(options_.most_job_bytes)};
  }
  const Sides at = sides(run.way);
  MemoryCopy copy{at.destination, at.source, run.bytes};
  const bool unified = run.strategy == CopyStrategy::unified;
  if (unified) {
    if (unified_.empty()) return Error{ErrorCode::impossible, "there is no unified memory"};
    if (run.way == CopyWay::store) {
      copy.source = unified_.data();
    } else {
      copy.destination = unified_.data();
    }
  }
  const auto in_use = unified_.view({0, unified ? run.bytes : 0});
  const CopyMode mode{.strategy = run.strategy,
                      .polling_interval_us = options_.polling_interval_us};
  Duration best = Duration::max();
  for (std::uint32_t round = 0; round <= options_.rounds; ++round) {
    // Start with the unified memory on the opposite side.
    if (unified) {
      CAIRN_TRY(stream_->prefetch(*in_use, run.way == CopyWay::store ? options_.device_id : -1));
      CAIRN_TRY(finish(*stream_));
    }
    const TimePoint begun = clock_->now();
    if (unified) {
      CAIRN_TRY(stream_->prefetch(*in_use, run.way == CopyWay::store ? -1 : options_.device_id));
    }
    CAIRN_TRY(stream_->copy({&copy, 1}));
    if (run.strategy == CopyStrategy::sync) CAIRN_TRY(stream_->synchronize());
    auto event = stream_->record();
    if (!event) return std::move(event).error();
    CAIRN_TRY(wait_for_event(**event, mode));
    if (round > 0) best = std::min(best, clock_->now() - begun);
  }
  return per_second(run.bytes, best);
}

Result<double> FormMeter::ceiling(CopyWay way) {
  const Sides at = sides(way);
  const MemoryCopy all{at.destination, at.source, options_.most_job_bytes};
  return best_rate({&all, 1}, CopyForm::loop);
}

Result<double> FormMeter::best_rate(std::span<const MemoryCopy> copies, CopyForm form) {
  std::uint64_t bytes = 0;
  for (const MemoryCopy& copy : copies) bytes += copy.size_bytes;
  Duration best = Duration::max();
  // One extra round, not counted: the first one loads what it needs.
  for (std::uint32_t round = 0; round <= options_.rounds; ++round) {
    const TimePoint begun = clock_->now();
    CAIRN_TRY(stream_->copy(copies, form));
    CAIRN_TRY(finish(*stream_));
    if (round > 0) best = std::min(best, clock_->now() - begun);
  }
  return per_second(bytes, best);
}

Result<double> FormMeter::duplex() {
  const Sides in = sides(CopyWay::load);
  const Sides out = sides(CopyWay::store);
  const MemoryCopy load{in.destination, in.source, options_.most_job_bytes};
  const MemoryCopy store{out.destination, out.source, options_.most_job_bytes};
  Duration best = Duration::max();
  for (std::uint32_t round = 0; round <= options_.rounds; ++round) {
    const TimePoint begun = clock_->now();
    CAIRN_TRY(stream_->copy({&load, 1}));
    CAIRN_TRY(other_->copy({&store, 1}));
    CAIRN_TRY(finish(*stream_));
    CAIRN_TRY(finish(*other_));
    if (round > 0) best = std::min(best, clock_->now() - begun);
  }
  return per_second(2 * options_.most_job_bytes, best);
}

}  // namespace cairn
