#include "transport/transfer/slot_transfer.hpp"

#include <algorithm>
#include <cstring>

#include "base/assert.hpp"
#include "base/checked.hpp"
#include "base/hash.hpp"
#include "base/pieces.hpp"
#include "base/thread.hpp"
#include "transport/copy/block_copier.hpp"
#include "transport/io/slot_file.hpp"

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
// The same with a codec, which is ten times slower.
constexpr std::uint64_t kInlineCodedBytes = 16ull << 10;
// A slot keeps pages that a shorter block leaves free, up to this share of the block: the next one
// may need them, and file systems let no other direct I/O on the file run while they make a hole.
constexpr std::uint64_t kKeptPagesShare = 16;

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

std::vector<iovec> vectors_of(std::span<const std::span<std::byte>> parts) {
  std::vector<iovec> vectors;
  vectors.reserve(parts.size());
  for (const auto part : parts) vectors.push_back({part.data(), part.size()});
  return vectors;
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
// - store, write_header: the CPU fills headers (and images, which it encodes), the disk writes,
//   pairs are reported.
// - load, check: the disk reads, the CPU decodes, compares (and copies out), pairs are reported.
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
    encoded_bytes_.clear();
    written_.clear();
    runs_.clear();
    in_place_ = job_.operation != JobOperation::write_header && !encodes() && reached_directly();
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
    if (bytes <= (codes() ? kInlineCodedBytes : kInlineBytes)) return (this->*work)();
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
    // Now, because a write that fails may take pages, too.
    for (std::size_t i = 0; job_.slots->is_sparse() && i < written_.size(); ++i) {
      job_.slots->add_pages(pairs()[i].destination, tail_of(i).kept_pages);
    }
    submit(DiskCall::Kind::write, [self = shared_from_this()](Result<> written) {
      self->step([&] { self->written(std::move(written)); });
    });
  }

  void written(Result<> result) {
    if (!result) return failed(result.error());
    std::vector<SlotTail> tails;
    for (std::size_t i = 0; i < written_.size(); ++i) {
      const std::uint32_t slot = pairs()[i].destination;
      job_.slots->set_written(slot, written_[i]);
      if (!job_.slots->is_sparse()) continue;
      const SlotTail tail = tail_of(i);
      if (job_.slots->pages(slot, tail.slots) > tail.kept_pages + surplus_pages()) {
        tails.push_back(tail);
      }
    }
    if (tails.empty()) return arrived();
    // The disk's own thread must not wait.
    equipment_.executor.post([self = shared_from_this(), tails = std::move(tails)] {
      self->step([&] {
        for (const SlotTail& tail : tails) self->punch(tail);
        self->arrived();
      });
    });
  }
  void arrived() {
    report_.arrived(range_);
    next();
  }

  // The slots of a block that is written, and the pages that it takes.
  SlotTail tail_of(std::size_t index) const {
    const std::uint64_t all_pages = pages_of_block(data_bytes());
    const std::uint64_t slot_pages = job_.slots->slot_pages();
    return {.slot = pairs()[index].destination,
            .slots = static_cast<std::uint32_t>((all_pages + slot_pages - 1) / slot_pages),
            .kept_pages = pages_of_block(stored_bytes(written_[index].encoded_bytes))};
  }
  std::uint64_t surplus_pages() const { return pages_of_block(data_bytes()) / kKeptPagesShare; }
  // After an error the pages stay, and count.
  void punch(const SlotTail& tail) {
    const bool gone = static_cast<bool>(punch_tail(equipment_.disk, *job_.destination, tail));
    if (gone) job_.slots->set_pages(tail.slot, tail.slots, tail.kept_pages);
  }

  // An encoded block is read to where its plain bytes will be.
  void read() {
    std::uint64_t size_bytes = 0;
    for (std::size_t i = 0; i < range_.count; ++i) {
      const BlockPair pair = pairs()[i];
      encoded_bytes_.push_back(job_.slots->encoded_bytes(pair.source));
      const std::uint64_t stored = stored_bytes(encoded_bytes_.back());
      size_bytes += stored;
      if (in_place_) {
        parts_.push_back(bytes_of(destination_, pair.destination));
        const bool by_pages = job_.slots->memory_alignment() > 1;
        add_runs(pair.source, kSlotHeaderBytes, parts_.back(), by_pages ? padded(stored) : stored);
      } else {
        std::byte* const data = image(i) + kSlotHeaderBytes;
        parts_.push_back({{data, data_bytes()}});
        runs_.push_back({pair.source, kSlotHeaderBytes, {data, padded(stored)}});
      }
    }
    if (has_codec()) job_.codec->reading.begin();
    submit(DiskCall::Kind::read, [self = shared_from_this(), size_bytes](Result<> read) {
      if (self->has_codec()) self->job_.codec->reading.end(read ? size_bytes : 0);
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
      if (encoded_bytes_[i] > 0 &&
          !job_.codec->decode_in_place(encoded_bytes_[i], vectors_of(parts_[i]))) {
        wrong.push_back(i);
        continue;
      }
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
  std::uint64_t stored_bytes(std::uint32_t encoded_bytes) const {
    return encoded_bytes > 0 ? encoded_bytes : data_bytes();
  }
  // Without one, blocks that an earlier run encoded are decoded all the same.
  bool has_codec() const { return job_.codec != nullptr && job_.codec->is_on(); }
  // Blocks that are longer than a slot can say stay as they are.
  bool encodes() const { return storing_ && has_codec() && data_bytes() <= UINT32_MAX; }
  bool codes() const {
    return encodes() || std::ranges::any_of(encoded_bytes_, [](auto bytes) { return bytes > 0; });
  }

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

  void put_header(std::size_t index, const SlotContents::Written& written) const {
    const std::size_t pair = range_.first + index;
    SlotHeader header;
    if (!job_.headers.empty()) header = job_.headers[pair];
    header.block.data_bytes = data_bytes();
    header.block.data_checksum = written.checksum;
    header.place.file_id = job_.slots->file_id();
    header.place.slot = job_.pairs[pair].destination;
    header.place.encoded_bytes = written.encoded_bytes;
    encode_slot_header(header,
                       std::span<std::byte, kSlotHeaderBytes>(image(index), kSlotHeaderBytes));
  }

  void fill_in_place() {
    PiecewiseHash hash;
    for (std::size_t i = 0; i < range_.count; ++i) {
      const BlockPair pair = pairs()[i];
      const auto parts = bytes_of(source_, pair.source);
      written_.push_back({.checksum = checksum_of(hash, parts)});
      runs_.push_back({pair.destination, 0, {image(i), kSlotHeaderBytes}});
      add_runs(pair.destination, kSlotHeaderBytes, parts, data_bytes());
      put_header(i, written_.back());
    }
  }

  void fill_images() {
    for (std::size_t i = 0; i < range_.count; ++i) {
      const std::span<std::byte> data(image(i) + kSlotHeaderBytes, data_bytes());
      written_.push_back({.checksum = hash_bytes(data, 0)});
      std::uint64_t stored = data.size();
      if (encodes()) {
        stored = encode(data);
        if (stored < data.size())
          written_.back().encoded_bytes = static_cast<std::uint32_t>(stored);
      }
      // Do not write old staging memory to disk.
      std::memset(data.data() + stored, 0, padded(stored) - stored);
      runs_.push_back({pairs()[i].destination, 0, {image(i), kSlotHeaderBytes + padded(stored)}});
      put_header(i, written_.back());
    }
  }

  // Replaces the bytes by their encoded form if that is smaller. Returns how many there are now.
  std::uint64_t encode(std::span<std::byte> data) const {
    const iovec plain{data.data(), data.size()};
    const auto width = static_cast<std::uint32_t>(disk_side().geometry->config().dtype_width_bytes);
    const auto encoded = job_.codec->encode({&plain, 1}, width);
    if (!encoded) return data.size();
    std::memcpy(data.data(), encoded->bytes.get(), encoded->size_bytes);
    return encoded->size_bytes;
  }

  void fill_headers() {
    for (std::size_t i = 0; i < range_.count; ++i) {
      const std::uint32_t slot = pairs()[i].destination;
      put_header(i, {job_.slots->checksum(slot), job_.slots->encoded_bytes(slot)});
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
  // The first `size_bytes` of the parts.
  void add_runs(std::uint32_t slot, std::uint64_t skip_bytes,
                std::span<const std::span<std::byte>> parts, std::uint64_t size_bytes) {
    for (const auto part : parts) {
      if (size_bytes == 0) return;
      runs_.push_back({slot, skip_bytes, part.first(std::min(part.size(), size_bytes))});
      skip_bytes += part.size();
      size_bytes -= runs_.back().memory.size();
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
  std::vector<std::uint32_t> encoded_bytes_;              // likewise
  std::vector<SlotContents::Written> written_;            // for each pair written
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
