#include "transport/transfer/memory_transfer.hpp"

#include <algorithm>
#include <vector>

#include "base/thread.hpp"
#include "transport/copy/block_copier.hpp"

namespace cairn {
namespace {

// Large enough that the start of a batch costs nothing; small enough that progress is visible and
// that one error does not fail the whole job.
constexpr std::uint64_t kBatchBytes = 32ull << 20;
// Bounds the plan of a batch with tiny pieces: 16384 spans are 640 KiB.
constexpr std::uint64_t kBatchPieces = 16384;
// The second batch is issued while the first runs. Between parts the stream idles for microseconds;
// a part takes milliseconds.
constexpr std::size_t kBatchesAPart = 2;

std::size_t pairs_per_batch(const Geometry& geometry) {
  const std::uint64_t pieces = geometry.block_bytes() / geometry.piece_bytes();
  const std::uint64_t pairs = std::min(kBatchBytes / geometry.block_bytes(), kBatchPieces / pieces);
  return static_cast<std::size_t>(std::max<std::uint64_t>(pairs, 1));
}

std::span<const BlockPair> pairs_of(const JobPart& part) {
  return std::span(part.job->job.pairs).subspan(part.pairs.first, part.pairs.count);
}

// Issues all batches of a part on one stream, each followed by an event.
class BatchedMove final : public std::enable_shared_from_this<BatchedMove> {
 public:
  BatchedMove(JobPart part, Executor& executor, StreamPool::Held streams,
              UniqueFunction<void()> ended)
      : part_(std::move(part)),
        job_(part_.job->job),
        report_(part_.job->report, part_.pairs.count),
        executor_(executor),
        streams_(std::move(streams)),
        ended_(std::move(ended)) {}

  void start() {
    step([this] {
      copier_.emplace(*streams_,
                      StreamCopier::Route{Place::of(*job_.source), Place::of(*job_.destination)},
                      part_.mode);
      const std::size_t batch = pairs_per_batch(job_.source->geometry());
      for (std::size_t done = 0; done < part_.pairs.count; done += batch) {
        add({part_.pairs.first + done, std::min(batch, part_.pairs.count - done)});
      }
      await_oldest();
    });
  }

 private:
  struct Batch {
    PairRange range;
    std::unique_ptr<Event> event;
  };

  std::span<const BlockPair> pairs(PairRange range) const {
    return std::span(job_.pairs).subspan(range.first, range.count);
  }

  template <class Work>
  void step(Work&& work) {
    if (guarded("transfer", work)) return;
    // Some bytes may have arrived, others may still be moving.
    in_flight_.clear();
    if (copier_) copier_->abandon();
    report_.lose_rest();
    finish();
  }

  void finish() {
    streams_.reset();
    auto ended = std::move(ended_);
    ended();
  }

  void add(PairRange range) {
    if (auto event = copier_->begin(pairs(range))) {
      in_flight_.push_back({range, std::move(*event)});
      return;
    } else {
      report_.failed(range, event.error());
    }
    restart();
  }

  void await_oldest() {
    if (in_flight_.empty()) return finish();
    when_ready(*in_flight_.front().event, part_.mode, executor_, [self = shared_from_this()] {
      self->step([&] {
        self->finish_oldest();
        self->await_oldest();
      });
    });
  }

  void finish_oldest() {
    Batch oldest = std::move(in_flight_.front());
    in_flight_.erase(in_flight_.begin());
    if (auto moved = outcome_of(*oldest.event)) {
      report_.arrived(oldest.range);
      return;
    } else {
      report_.failed(oldest.range, moved.error());
    }
    oldest.event.reset();
    restart();
  }

  // Call after a stream error. Later batches on the stream may report the same error, so they are
  // copied again, one at a time on a fresh stream: only batches that really fail are reported.
  void restart() {
    std::vector<PairRange> suspects;
    for (Batch& batch : in_flight_) {
      if (wait_for_event(*batch.event, part_.mode)) {
        report_.arrived(batch.range);
      } else {
        suspects.push_back(batch.range);
      }
    }
    in_flight_.clear();
    copier_->abandon();
    for (PairRange suspect : suspects) {
      if (auto moved = copier_->copy(pairs(suspect))) {
        report_.arrived(suspect);
      } else {
        report_.failed(suspect, moved.error());
      }
    }
  }

  const JobPart part_;
  const TransferJob& job_;
  PartReport report_;
  Executor& executor_;
  StreamPool::Held streams_;
  std::optional<BlockCopier> copier_;
  std::vector<Batch> in_flight_;  // oldest first
  UniqueFunction<void()> ended_;
};

void copy_by_cpu(const JobPart& part) {
  const TransferJob& job = part.job->job;
  const StreamCopier::Route route{Place::of(*job.source), Place::of(*job.destination)};
  const std::size_t batch = pairs_per_batch(job.source->geometry());
  for (std::size_t done = 0; done < part.pairs.count; done += batch) {
    const PairRange range{part.pairs.first + done, std::min(batch, part.pairs.count - done)};
    copy_on_cpu(route, std::span(job.pairs).subspan(range.first, range.count));
    part.job->report.arrived(range);
  }
}

// Does not wait: the pages are valid wherever they are.
void prefetch_blocks(const JobPart& part, StreamSet& streams) {
  const Place place = Place::of(*part.job->job.destination);
  const auto fetch = [&]() -> Result<> {
    auto stream = streams.stream(place.device_id());
    if (!stream) return std::move(stream).error();
    std::vector<BlockSpan> spans;
    std::vector<PlacePart> parts;
    for (const BlockPair pair : pairs_of(part)) {
      spans.clear();
      plan_canonical(*place.geometry, pair.destination, spans);
      for (const BlockSpan& span : spans) {
        parts.push_back({span.location.region, {span.location.offset_bytes, span.size_bytes}});
      }
    }
    return prefetch_parts(**stream, place, parts, {place.device_id(), part.mode.prefetched});
  };
  JobReport& report = part.job->report;
  if (auto fetched = fetch()) {
    report.arrived(part.pairs);
  } else {
    streams.drop_streams(place.device_id());
    report.failed(part.pairs, fetched.error());
  }
}

// If `work` throws, some bytes may have arrived, but no pair counts as arrived.
void all_at_once(const JobPart& part, UniqueFunction<void()>& ended, auto&& work) {
  if (!guarded("transfer", work)) part.job->report.lost(part.pairs.count);
  ended();
}

}  // namespace

std::size_t memory_pairs_per_part(const TransferJob& job) {
  return kBatchesAPart * pairs_per_batch(job.source->geometry());
}

void move_in_memory(JobPart part, const JobEquipment& equipment, UniqueFunction<void()> ended) {
  const TransferJob& job = part.job->job;
  if (job.operation == JobOperation::prefetch) {
    return equipment.streams.post(
        [part = std::move(part), ended = std::move(ended)](StreamPool::Held streams) mutable {
          all_at_once(part, ended, [&] {
            prefetch_blocks(part, *streams);
            streams.reset();
          });
        });
  }
  if (!way_of({job.source->storage_kind(), job.destination->storage_kind()})) {
    return equipment.executor.post([part = std::move(part), ended = std::move(ended)]() mutable {
      all_at_once(part, ended, [&] { copy_by_cpu(part); });
    });
  }
  equipment.streams.post([part = std::move(part), &executor = equipment.executor,
                          ended = std::move(ended)](StreamPool::Held streams) mutable {
    // The constructor takes its arguments only after the allocation has succeeded, and allocates
    // nothing.
    std::shared_ptr<BatchedMove> move;
    const bool made = guarded("transfer", [&] {
      move = std::make_shared<BatchedMove>(part, executor, std::move(streams), std::move(ended));
    });
    if (made) return move->start();
    part.job->report.lost(part.pairs.count);
    ended();
  });
}

}  // namespace cairn
