#include "transport/engine/memory_mover.hpp"

#include <algorithm>
#include <cstring>
#include <deque>

#include "transport/copy/scratch_copier.hpp"

namespace cairn {
namespace {

// One batch is large enough that its start costs nothing, and small enough that progress is seen
// and an error does not take the whole job with it.
constexpr std::uint64_t kBatchBytes = 32ull << 20;
// Bounds the plan of a batch where pieces are tiny: 16384 spans are 640 KiB.
constexpr std::uint64_t kBatchPieces = 16384;
// The next batch is issued while one runs, so the stream never runs dry.
constexpr std::size_t kBatchesInFlight = 2;
// The stream runs dry between parts: a few microseconds, of some milliseconds.
constexpr std::size_t kBatchesAPart = 2;

std::size_t pairs_per_batch(const Geometry& geometry) {
  const std::uint64_t pieces = geometry.block_bytes() / geometry.piece_bytes();
  const std::uint64_t pairs = std::min(kBatchBytes / geometry.block_bytes(), kBatchPieces / pieces);
  return static_cast<std::size_t>(std::max<std::uint64_t>(pairs, 1));
}

class BatchedCopy {
 public:
  BatchedCopy(const TransferJob& job, CopyMode mode, StreamSet& streams, JobReport& report)
      : job_(job),
        copier_(streams, {Place::of(*job.source), Place::of(*job.destination)}, mode),
        by_scratch_(ScratchCopier::make(
            streams, {Place::of(*job.source), Place::of(*job.destination)}, mode)),
        report_(report) {}

  void add(PairRange range) {
    if (in_flight_.size() == kBatchesInFlight) finish_oldest();
    if (auto event = begin(range)) {
      in_flight_.push_back({range, std::move(*event)});
      return;
    } else {
      report_.failed(range, event.error());
    }
    restart();
  }

  void finish() {
    while (!in_flight_.empty()) finish_oldest();
  }

 private:
  struct Batch {
    PairRange range;
    std::unique_ptr<Event> event;
  };

  std::span<const BlockPair> pairs(PairRange range) const {
    return std::span(job_.pairs).subspan(range.first, range.count);
  }

  Result<std::unique_ptr<Event>> begin(PairRange range) {
    if (by_scratch_) {
      auto event = by_scratch_->begin(pairs(range));
      if (event || event.error().code != ErrorCode::no_capacity) return event;
      by_scratch_.reset();  // the device is full: piece by piece
    }
    return copier_.begin(pairs(range));
  }

  void finish_oldest() {
    Batch oldest = std::move(in_flight_.front());
    in_flight_.pop_front();
    if (auto moved = copier_.wait(*oldest.event)) {
      report_.arrived(oldest.range);
      return;
    } else {
      report_.failed(oldest.range, moved.error());
    }
    oldest.event.reset();
    restart();
  }

  // After an error on the stream. Batches behind it may report that error as theirs: those are
  // copied again, alone on a fresh stream, so that only what really failed is named.
  void restart() {
    std::vector<PairRange> suspects;
    for (Batch& batch : in_flight_) {
      if (copier_.wait(*batch.event)) {
        report_.arrived(batch.range);
      } else {
        suspects.push_back(batch.range);
      }
    }
    in_flight_.clear();
    copier_.abandon();
    for (PairRange suspect : suspects) {
      if (auto moved = copier_.copy(pairs(suspect))) {
        report_.arrived(suspect);
      } else {
        report_.failed(suspect, moved.error());
      }
    }
  }

  const TransferJob& job_;
  StreamCopier copier_;
  std::optional<ScratchCopier> by_scratch_;
  JobReport& report_;
  std::deque<Batch> in_flight_;
};

class CpuCopy {
 public:
  CpuCopy(const TransferJob& job, JobReport& report) : job_(job), report_(report) {}

  void add(PairRange range) {
    spans_.clear();
    plan_copy(job_.source->geometry(), job_.destination->geometry(),
              std::span(job_.pairs).subspan(range.first, range.count), spans_);
    for (const CopySpan& span : spans_) {
      std::memcpy(job_.destination->address(span.destination), job_.source->address(span.source),
                  span.size_bytes);
    }
    report_.arrived(range);
  }

  void finish() {}

 private:
  const TransferJob& job_;
  JobReport& report_;
  std::vector<CopySpan> spans_;
};

// Not waited for: whatever comes next on the device's memory finds it where it is.
void prefetch_blocks(const MemoryPart& part, StreamSet& streams, JobReport& report) {
  const Place place = Place::of(*part.job.destination);
  const auto fetch = [&]() -> Result<> {
    auto stream = streams.stream(place.device_id());
    if (!stream) return std::move(stream).error();
    std::vector<BlockSpan> spans;
    std::vector<PlacePart> parts;
    for (const BlockPair pair :
         std::span(part.job.pairs).subspan(part.pairs.first, part.pairs.count)) {
      spans.clear();
      plan_canonical(*place.geometry, pair.destination, spans);
      for (const BlockSpan& span : spans) {
        parts.push_back({span.location.region, {span.location.offset_bytes, span.size_bytes}});
      }
    }
    return prefetch_parts(**stream, place, parts, place.device_id());
  };
  if (auto fetched = fetch()) {
    report.arrived(part.pairs);
  } else {
    streams.drop_stream(place.device_id());
    report.failed(part.pairs, fetched.error());
  }
}

void move_in_batches(const MemoryPart& part, auto&& copy) {
  const std::size_t step = pairs_per_batch(part.job.source->geometry());
  for (std::size_t done = 0; done < part.pairs.count; done += step) {
    copy.add({part.pairs.first + done, std::min(step, part.pairs.count - done)});
  }
  copy.finish();
}

}  // namespace

std::size_t memory_pairs_per_part(const TransferJob& job) {
  return kBatchesAPart * pairs_per_batch(job.source->geometry());
}

void move_in_memory(const MemoryPart& part, StreamSet& streams, JobReport& report) {
  if (part.job.operation == JobOperation::prefetch) {
    prefetch_blocks(part, streams, report);
  } else if (!way_of({part.job.source->storage_kind(), part.job.destination->storage_kind()})) {
    move_in_batches(part, CpuCopy(part.job, report));
  } else {
    move_in_batches(part, BatchedCopy(part.job, part.mode, streams, report));
  }
}

}  // namespace cairn
