#include "transport/transfer/slot_transfer.hpp"

#include <algorithm>
#include <cstring>

#include "base/assert.hpp"
#include "base/checked.hpp"
#include "base/hash.hpp"
#include "base/thread.hpp"
#include "transport/copy/block_copier.hpp"

namespace cairn {
namespace {

// Part size, or one slot if slots are larger. A disk reaches full throughput at 1 MiB. Small parts
// limit how long urgent jobs wait, and how long a job waits for the CPU work of its last part.
// Adjacent slots of a part become one I/O.
constexpr std::uint64_t kPartBytes = 1ull << 20;
// Bounds a part's buffer list if a block's pieces are tiny.
constexpr std::uint64_t kPartPieces = 4096;
// CPU work up to this size runs inline: waking another thread costs over 30 us, a checksum of this
// much 10 us.
constexpr std::uint64_t kInlineBytes = 128ull << 10;

std::uint64_t padded(std::uint64_t size_bytes) {
  return checked_align_up(size_bytes, kSlotHeaderBytes).value();
}

// The block's memory in canonical order.
std::vector<std::span<std::byte>> bytes_of(const Place& place, std::uint32_t block) {
  std::vector<BlockSpan> spans;
  plan_canonical(*place.geometry, block, spans);
  std::vector<std::span<std::byte>> bytes;
  bytes.reserve(spans.size());
  for (const BlockSpan& span : spans) {
    bytes.emplace_back(place.address(span.location), span.size_bytes);
  }
  return bytes;
}

std::uint64_t checksum_of(PiecewiseHash& hash, std::span<const std::span<std::byte>> parts) {
  hash.reset();
  for (const auto part : parts) hash.add(part);
  return hash.value();
}

Error mismatch(std::uint32_t slot) {
  return {ErrorCode::checksum_mismatch,
          "disk slot " + std::to_string(slot) + " does not match its checksum"};
}

// Slots with the same format as in a file, but contiguous in memory.
Geometry image_geometry(const Geometry& disk, std::uint64_t count) {
  LayoutConfig shape = disk.config();
  shape.num_blocks = count;
  shape.alignment = 1;
  return Geometry::in_slots(shape,
                            {.header_bytes = kSlotHeaderBytes, .alignment = kSlotHeaderBytes});
}

// Moves one part, one range of pairs at a time. Allocates staging memory for a range if needed,
// then:
// - store, write_header: the CPU fills headers (and images), the disk writes, pairs are reported.
// - load, check: the disk reads, the CPU compares (and copies out), pairs are reported.
// A failed range is retried pair by pair, so that only pairs that really fail are reported. Each
// step holds a reference to the part. If a step throws, the part's remaining pairs are lost.
class MovingPart final : public std::enable_shared_from_this<MovingPart> {
 public:
  MovingPart(JobPart part, const JobEquipment& equipment, UniqueFunction<void()> ended)
      : part_(std::move(part)),
        job_(part_.job->job),
        report_(part_.job->report, part_.pairs.count),
        source_(Place::of(*job_.source)),
        destination_(Place::of(*job_.destination)),
        equipment_(equipment),
        ended_(std::move(ended)),
        storing_(destination_.on_disk() && job_.operation != JobOperation::check),
        todo_{part_.pairs} {}

  void start() {
    step([this] { next(); });
  }

 private:
  // --- steps
  template <class Work>
  void step(Work&& work) {
    if (guarded("transfer", work)) return;
    report_.lose_rest();
    finish();
  }

  void finish() {
    copied_.reset();
    if (copier_) copier_->abandon();  // a step threw; bytes may still be moving
    copier_.reset();
    streams_.reset();
    memory_.reset();
    auto ended = std::move(ended_);
    ended();
  }

  void next() {
    memory_.reset();
    if (todo_.empty()) return finish();
    range_ = todo_.back();
    todo_.pop_back();
    parts_.clear();
    checksums_.clear();
    runs_.clear();
    in_place_ = job_.operation != JobOperation::write_header && reached_directly();
    const std::uint64_t staged_bytes = range_.count * image_bytes();
    if (staged_bytes == 0) return begin();
    equipment_.staging.acquire(staged_bytes,
                               [self = shared_from_this()](Result<PinnedPool::Slot> slot) {
                                 self->step([&] {
                                   if (!slot) return self->fail_all(slot.error());
                                   self->memory_.emplace(std::move(*slot));
                                   self->begin();
                                 });
                               });
  }

  void begin() {
    if (storing_) {
      on_cpu(&MovingPart::fill);
    } else {
      read();
    }
  }

  // Runs `work` inline or on the executor, with streams if a device takes part.
  void on_cpu(void (MovingPart::*work)()) {
    if (job_.operation == JobOperation::copy && is_on_device(memory_side().kind())) {
      return equipment_.streams.post([self = shared_from_this(), work](StreamPool::Held streams) {
        self->step([&] {
          self->streams_ = std::move(streams);
          (self.get()->*work)();
        });
      });
    }
    const std::uint64_t bytes = job_.operation == JobOperation::write_header
                                    ? range_.count * kSlotHeaderBytes
                                    : range_.count * data_bytes();
    if (bytes <= kInlineBytes) return (this->*work)();
    equipment_.executor.post(
        [self = shared_from_this(), work] { self->step([&] { (self.get()->*work)(); }); });
  }

  void fill() {
    if (job_.operation != JobOperation::write_header && !in_place_) return copy_to_image();
    if (job_.operation == JobOperation::write_header) {
      fill_headers();
    } else {
      fill_in_place();
    }
    write();
  }

  void write() {
    submit(DiskCall::Kind::write, [self = shared_from_this()](Result<> written) {
      self->step([&] { self->written(std::move(written)); });
    });
  }

  void written(Result<> result) {
    if (!result) return failed(result.error());
    for (std::size_t i = 0; i < checksums_.size(); ++i) {
      job_.slots->set_written(pairs()[i].destination, checksums_[i]);
    }
    report_.arrived(range_);
    next();
  }

  void read() {
    for (std::size_t i = 0; i < range_.count; ++i) {
      const BlockPair pair = pairs()[i];
      if (in_place_) {
        parts_.push_back(bytes_of(destination_, pair.destination));
        add_runs(pair.source, kSlotHeaderBytes, parts_.back());
      } else {
        std::byte* const data = image(i) + kSlotHeaderBytes;
        parts_.push_back({{data, data_bytes()}});
        runs_.push_back({pair.source, kSlotHeaderBytes, {data, padded(data_bytes())}});
      }
    }
    submit(DiskCall::Kind::read, [self = shared_from_this()](Result<> read) {
      self->step([&] {
        if (!read) return self->failed(read.error());
        self->on_cpu(&MovingPart::check);
      });
    });
  }

  void check() {
    std::vector<std::uint32_t> wrong;  // indexes in the range
    PiecewiseHash hash;
    for (std::uint32_t i = 0; i < range_.count; ++i) {
      const std::uint32_t slot = pairs()[i].source;
      if (job_.operation != JobOperation::check && !job_.slots->wants_check(slot)) continue;
      if (checksum_of(hash, parts_[i]) == job_.slots->checksum(slot)) {
        job_.slots->set_proved(slot);
      } else {
        wrong.push_back(i);
      }
    }
    if (in_place_ || job_.operation != JobOperation::copy) return checked(wrong);
    copy_from_image(std::move(wrong));
  }

  void checked(std::span<const std::uint32_t> wrong) {
    std::size_t first = 0;
    for (const std::uint32_t bad : wrong) {
      if (bad > first) report_.arrived({range_.first + first, bad - first});
      report_.failed({range_.first + bad, 1}, mismatch(pairs()[bad].source));
      first = bad + 1;
    }
    if (first < range_.count) report_.arrived({range_.first + first, range_.count - first});
    next();
  }

  // --- results of pairs
  void failed(const Error& error) {
    if (range_.count == 1) {
      report_.failed(range_, error);
    } else {
      for (std::size_t i = range_.count; i-- > 0;) todo_.push_back({range_.first + i, 1});
    }
    next();
  }
  // No staging memory. Finish on the executor: the next part would also fail inside this call.
  void fail_all(const Error& error) {
    report_.failed(range_, error);
    for (const PairRange& range : todo_) report_.failed(range, error);
    equipment_.executor.post([self = shared_from_this()] { self->finish(); });
  }

  // --- bytes
  std::span<const BlockPair> pairs() const {
    return std::span(job_.pairs).subspan(range_.first, range_.count);
  }
  const Place& memory_side() const { return storing_ ? source_ : destination_; }
  const Place& disk_side() const { return storing_ ? destination_ : source_; }
  std::uint64_t data_bytes() const { return disk_side().geometry->block_bytes(); }

  // Staging memory per pair: a whole slot, a header, or nothing.
  std::uint64_t image_bytes() const {
    if (job_.operation == JobOperation::write_header) return kSlotHeaderBytes;
    if (in_place_) return storing_ ? kSlotHeaderBytes : 0;
    return kSlotHeaderBytes + padded(data_bytes());
  }
  std::byte* image(std::size_t index) const { return memory_->data() + index * image_bytes(); }

  bool reached_directly() const {
    const Place& memory = memory_side();
    if (job_.through_staging || job_.source_outers) return false;
    if (!is_host_memory(memory.kind())) return false;
    const std::uint32_t alignment = job_.slots->memory_alignment();
    if (alignment == 1) return true;
    for (const BlockPair& pair : pairs()) {
      for (const auto part : bytes_of(memory, storing_ ? pair.source : pair.destination)) {
        if (reinterpret_cast<std::uintptr_t>(part.data()) % alignment != 0 ||
            part.size() % alignment != 0) {
          return false;
        }
      }
    }
    return true;
  }

  void put_header(std::size_t index, std::uint64_t checksum) const {
    const std::size_t pair = range_.first + index;
    SlotHeader header;
    if (!job_.headers.empty()) header = job_.headers[pair];
    header.block.data_bytes = data_bytes();
    header.block.data_checksum = checksum;
    header.place.file_id = job_.slots->file_id();
    header.place.slot = job_.pairs[pair].destination;
    encode_slot_header(header,
                       std::span<std::byte, kSlotHeaderBytes>(image(index), kSlotHeaderBytes));
  }

  void fill_in_place() {
    PiecewiseHash hash;
    for (std::size_t i = 0; i < range_.count; ++i) {
      const BlockPair pair = pairs()[i];
      const auto parts = bytes_of(source_, pair.source);
      checksums_.push_back(checksum_of(hash, parts));
      runs_.push_back({pair.destination, 0, {image(i), kSlotHeaderBytes}});
      add_runs(pair.destination, kSlotHeaderBytes, parts);
      put_header(i, checksums_.back());
    }
  }

  void fill_images() {
    for (std::size_t i = 0; i < range_.count; ++i) {
      std::byte* const data = image(i) + kSlotHeaderBytes;
      // Do not write old staging memory to disk.
      std::memset(data + data_bytes(), 0, padded(data_bytes()) - data_bytes());
      checksums_.push_back(hash_bytes({data, data_bytes()}, 0));
      runs_.push_back({pairs()[i].destination, 0, {image(i), image_bytes()}});
      put_header(i, checksums_.back());
    }
  }

  void fill_headers() {
    for (std::size_t i = 0; i < range_.count; ++i) {
      const std::uint32_t slot = pairs()[i].destination;
      put_header(i, job_.slots->checksum(slot));
      runs_.push_back({slot, 0, {image(i), kSlotHeaderBytes}});
    }
  }

  void copy_to_image() {
    const Geometry geometry = image_geometry(*disk_side().geometry, range_.count);
    const RegionView view = memory_->view();
    std::vector<BlockPair> in(pairs().begin(), pairs().end());
    for (std::uint32_t i = 0; i < in.size(); ++i) in[i].destination = i;
    copy_between({source_, {&geometry, {&view, 1}}}, in, [this] {
      fill_images();
      write();
    });
  }

  void copy_from_image(std::vector<std::uint32_t> wrong) {
    Geometry geometry = image_geometry(*disk_side().geometry, range_.count);
    if (job_.source_outers) geometry = geometry.with_outers(*job_.source_outers);
    const RegionView view = memory_->view();
    std::vector<BlockPair> out;
    for (std::uint32_t i = 0; i < range_.count; ++i) {
      if (std::ranges::binary_search(wrong, i)) continue;
      out.push_back({i, pairs()[i].destination});
    }
    copy_between({{&geometry, {&view, 1}}, destination_}, out,
                 [this, wrong = std::move(wrong)] { checked(wrong); });
  }

  // Calls `then` in a step once all pairs have arrived. Uses the route only during this call.
  void copy_between(const StreamCopier::Route& route, std::span<const BlockPair> pairs,
                    UniqueFunction<void()> then) {
    if (!streams_ || pairs.empty()) {
      copy_on_cpu(route, pairs);
      return copy_ended({}, then);
    }
    copier_.emplace(*streams_, route, part_.mode);
    auto begun = copier_->begin(pairs);
    if (!begun) {
      copier_->abandon();
      return copy_ended(begun.error(), then);
    }
    copied_ = std::move(*begun);
    when_ready(*copied_, part_.mode, equipment_.executor,
               [self = shared_from_this(), then = std::move(then)]() mutable {
                 self->step([&] {
                   const Result<> outcome = outcome_of(*self->copied_);
                   self->copied_.reset();
                   if (!outcome) self->copier_->abandon();
                   self->copy_ended(outcome, then);
                 });
               });
  }
  // REQUIRES: nothing of the copy is moving.
  void copy_ended(const Result<>& outcome, UniqueFunction<void()>& then) {
    copier_.reset();
    streams_.reset();
    if (!outcome) return failed(outcome.error());
    then();
  }

  // `skip_bytes` counts from the start of the slot.
  struct SlotRun {
    std::uint32_t slot = 0;
    std::uint64_t skip_bytes = 0;
    std::span<std::byte> memory;
  };
  void add_runs(std::uint32_t slot, std::uint64_t skip_bytes,
                std::span<const std::span<std::byte>> parts) {
    for (const auto part : parts) {
      runs_.push_back({slot, skip_bytes, part});
      skip_bytes += part.size();
    }
  }

  // One call per file, with runs sorted by offset so that neighbours merge.
  void submit(DiskCall::Kind kind, DiskIo::Done done) {
    const Place& file = disk_side();
    std::vector<DiskCall> calls(file.regions.size());
    for (const SlotRun& run : runs_) {
      const PieceLocation at = file.geometry->locate({.block = run.slot});
      const RegionView& region = file.regions[at.region];
      calls[at.region].fd = region.fd();
      calls[at.region].runs.push_back(
          {run.memory.data(),
           region.file_offset_bytes() + at.offset_bytes - kSlotHeaderBytes + run.skip_bytes,
           run.memory.size()});
    }
    std::erase_if(calls, [](const DiskCall& call) { return call.runs.empty(); });
    for (DiskCall& call : calls) {
      call.kind = kind;
      std::ranges::sort(call.runs, {}, &DiskRun::offset_bytes);
    }
    equipment_.disk.submit_all(std::move(calls), std::move(done));
  }

  const JobPart part_;
  const TransferJob& job_;
  PartReport report_;
  const Place source_;
  const Place destination_;
  const JobEquipment equipment_;
  UniqueFunction<void()> ended_;
  const bool storing_;

  std::vector<PairRange> todo_;  // in reverse order
  // For the current range:
  PairRange range_;
  bool in_place_ = false;  // the disk accesses its memory directly
  std::optional<PinnedPool::Slot> memory_;
  std::vector<std::vector<std::span<std::byte>>> parts_;  // for each pair read
  std::vector<std::uint64_t> checksums_;                  // for each pair written
  std::vector<SlotRun> runs_;
  // For a copy with a device:
  StreamPool::Held streams_;
  std::optional<BlockCopier> copier_;
  std::unique_ptr<Event> copied_;
};

}  // namespace

std::size_t slots_per_part(const TransferJob& job) {
  const Geometry& geometry =
      (job.destination->storage_kind() == StorageKind::disk ? job.source : job.destination)
          ->geometry();
  const std::uint64_t pieces = geometry.block_bytes() / geometry.piece_bytes();
  return static_cast<std::size_t>(std::max<std::uint64_t>(
      std::min(kPartBytes / geometry.block_bytes(), kPartPieces / pieces), 1));
}

void move_slots(JobPart part, const JobEquipment& equipment, UniqueFunction<void()> ended) {
  std::make_shared<MovingPart>(std::move(part), equipment, std::move(ended))->start();
}

}  // namespace cairn
