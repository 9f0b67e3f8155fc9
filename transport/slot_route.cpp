#include "transport/slot_route.hpp"

#include <algorithm>
#include <cstring>

#include "base/assert.hpp"
#include "base/checked.hpp"
#include "base/hash.hpp"

namespace cairn {
namespace {

// Slots are moved in groups of this size (of one slot where slots are larger). Slots of a group
// that are neighbours are one piece of I/O.
constexpr std::uint64_t kGroupBytes = 2ull << 20;
// Bounds a group's list of buffers where the pieces of a block are tiny.
constexpr std::uint64_t kGroupPieces = 4096;

std::uint64_t padded(std::uint64_t size_bytes) {
  return checked_align_up(size_bytes, kSlotHeaderBytes).value();
}

// The memory of a block in canonical order.
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
          "the bytes of disk slot " + std::to_string(slot) + " do not have their checksum"};
}

}  // namespace

// Page-aligned pinned memory for a group: headers, or whole slots as they lie on disk.
struct SlotMove::Memory {
  static Result<Memory> acquire(PinnedPool& pool, std::uint64_t size_bytes) {
    auto slot = pool.acquire(size_bytes);
    if (!slot) return std::move(slot).error();
    const RegionView view = slot->view();
    return Memory{std::move(*slot), view};
  }
  std::byte* at(std::uint64_t offset_bytes) const { return view.data() + offset_bytes; }

  PinnedPool::Slot slot;
  RegionView view;
};

SlotMove::SlotMove(const TransferJob& job, CopyMode mode, DiskEquipment equipment,
                   JobReport& report)
    : job_(job),
      source_(Place::of(*job.source)),
      destination_(Place::of(*job.destination)),
      mode_(mode),
      equipment_(equipment),
      report_(report),
      storing_(destination_.on_disk() && !job.only_check) {
  CAIRN_ASSERT(job.only_labels || job.only_check || source_.on_disk() != destination_.on_disk(),
               "a job between two slot files would check only one of them");
}

std::size_t SlotMove::pairs_per_group() const {
  const Geometry& geometry = *memory_side().geometry;
  const std::uint64_t pieces = geometry.block_bytes() / geometry.piece_bytes();
  return static_cast<std::size_t>(std::max<std::uint64_t>(
      std::min(kGroupBytes / geometry.block_bytes(), kGroupPieces / pieces), 1));
}

std::span<const BlockPair> SlotMove::pairs(PairRange range) const {
  return std::span(job_.pairs).subspan(range.first, range.count);
}

void SlotMove::move_group(PairRange range, Lane& lane) const {
  std::vector<std::uint32_t> wrong;
  const Result<> moved = job_.only_labels ? store_labels(range)
                         : storing_       ? store(range, lane)
                                          : load(range, lane, wrong);
  if (!moved) {
    // Each is tried alone, so that only those that really cannot be moved are named.
    if (range.count == 1) return report_.failed(range, moved.error());
    for (std::size_t i = 0; i < range.count; ++i) move_group({range.first + i, 1}, lane);
    return;
  }
  std::size_t next = 0;
  for (const std::uint32_t bad : wrong) {
    if (bad > next) report_.arrived({range.first + next, bad - next});
    report_.failed({range.first + bad, 1}, mismatch(slot_of(pairs(range)[bad])));
    next = bad + 1;
  }
  if (next < range.count) report_.arrived({range.first + next, range.count - next});
}

bool SlotMove::reached_directly(PairRange range) const {
  const Place& memory = memory_side();
  if (!is_host_accessible(memory.kind())) return false;
  const std::uint32_t alignment = job_.slots->memory_alignment();
  if (alignment == 1) return true;
  for (const BlockPair& pair : pairs(range)) {
    for (const auto part : bytes_of(memory, storing_ ? pair.source : pair.destination)) {
      if (reinterpret_cast<std::uintptr_t>(part.data()) % alignment != 0 ||
          part.size() % alignment != 0) {
        return false;
      }
    }
  }
  return true;
}

void SlotMove::put_header(std::size_t index, std::uint64_t checksum, std::byte* page) const {
  SlotHeader header{.file_id = job_.slots->file_id(),
                    .slot = job_.pairs[index].destination,
                    .data_bytes = disk_side().geometry->block_bytes(),
                    .data_checksum = checksum,
                    .label = {}};
  if (!job_.labels.empty()) header.label = job_.labels[index];
  encode_slot_header(header, std::span<std::byte, kSlotHeaderBytes>(page, kSlotHeaderBytes));
}

Result<> SlotMove::store(PairRange range, Lane& lane) const {
  const auto moved = pairs(range);
  const std::uint64_t data_bytes = disk_side().geometry->block_bytes();
  PiecewiseHash hash;
  std::vector<std::uint64_t> checksums;
  std::vector<SlotRun> runs;
  const bool in_place = reached_directly(range);
  const std::uint64_t image_bytes = kSlotHeaderBytes + (in_place ? 0 : padded(data_bytes));
  auto memory = Memory::acquire(equipment_.staging, moved.size() * image_bytes);
  if (!memory) return std::move(memory).error();
  if (!in_place) CAIRN_TRY(copy_to_image(range, *memory, lane));
  for (std::size_t i = 0; i < moved.size(); ++i) {
    std::byte* const header = memory->at(i * image_bytes);
    const std::uint32_t slot = moved[i].destination;
    if (in_place) {
      const auto parts = bytes_of(source_, moved[i].source);
      checksums.push_back(checksum_of(hash, parts));
      runs.push_back({slot, 0, {header, kSlotHeaderBytes}});
      std::uint64_t skip = kSlotHeaderBytes;
      for (const auto part : parts) {
        runs.push_back({slot, skip, part});
        skip += part.size();
      }
    } else {
      std::byte* const data = header + kSlotHeaderBytes;
      // Nothing of what was in the staging memory before may get out.
      std::memset(data + data_bytes, 0, padded(data_bytes) - data_bytes);
      checksums.push_back(hash_bytes({data, data_bytes}, 0));
      runs.push_back({slot, 0, {header, image_bytes}});
    }
    put_header(range.first + i, checksums.back(), header);
  }
  CAIRN_TRY(transfer(runs, &DiskIo::write));
  for (std::size_t i = 0; i < moved.size(); ++i) {
    job_.slots->set_written(moved[i].destination, checksums[i]);
  }
  return {};
}

Result<> SlotMove::store_labels(PairRange range) const {
  const auto labelled = pairs(range);
  auto memory = Memory::acquire(equipment_.staging, labelled.size() * kSlotHeaderBytes);
  if (!memory) return std::move(memory).error();
  std::vector<SlotRun> runs;
  for (std::size_t i = 0; i < labelled.size(); ++i) {
    const std::uint32_t slot = labelled[i].destination;
    std::byte* const page = memory->at(i * kSlotHeaderBytes);
    put_header(range.first + i, job_.slots->checksum(slot), page);
    runs.push_back({slot, 0, {page, kSlotHeaderBytes}});
  }
  return transfer(runs, &DiskIo::write);
}

Result<> SlotMove::load(PairRange range, Lane& lane, std::vector<std::uint32_t>& wrong) const {
  const auto moved = pairs(range);
  const std::uint64_t data_bytes = disk_side().geometry->block_bytes();
  const bool in_place = reached_directly(range);
  const std::uint64_t image_bytes = kSlotHeaderBytes + padded(data_bytes);
  std::optional<Memory> memory;
  std::vector<SlotRun> runs;
  std::vector<std::vector<std::span<std::byte>>> parts;
  if (!in_place) {
    auto acquired = Memory::acquire(equipment_.staging, moved.size() * image_bytes);
    if (!acquired) return std::move(acquired).error();
    memory.emplace(std::move(*acquired));
  }
  for (std::size_t i = 0; i < moved.size(); ++i) {
    const std::uint32_t slot = moved[i].source;
    if (in_place) {
      parts.push_back(bytes_of(destination_, moved[i].destination));
      std::uint64_t skip = kSlotHeaderBytes;
      for (const auto part : parts.back()) {
        runs.push_back({slot, skip, part});
        skip += part.size();
      }
    } else {
      std::byte* const data = memory->at(i * image_bytes + kSlotHeaderBytes);
      parts.push_back({{data, data_bytes}});
      runs.push_back({slot, kSlotHeaderBytes, {data, padded(data_bytes)}});
    }
  }
  CAIRN_TRY(transfer(runs, &DiskIo::read));
  PiecewiseHash hash;
  for (std::uint32_t i = 0; i < moved.size(); ++i) {
    const std::uint32_t slot = moved[i].source;
    if (!job_.only_check && !job_.slots->wants_check(slot)) continue;
    if (checksum_of(hash, parts[i]) == job_.slots->checksum(slot)) {
      job_.slots->set_proved(slot);
    } else {
      wrong.push_back(i);
    }
  }
  if (in_place || job_.only_check) return {};
  return copy_from_image(range, *memory, wrong, lane);
}

namespace {

// Slots as they lie in a file, but one after the other in memory.
Geometry image_geometry(const Geometry& disk, std::uint64_t count) {
  LayoutConfig shape = disk.config();
  shape.num_blocks = count;
  shape.alignment = 1;
  return Geometry::in_slots(shape,
                            {.header_bytes = kSlotHeaderBytes, .alignment = kSlotHeaderBytes});
}

Result<> copy_between(const Place& from, const Place& to, std::span<const BlockPair> pairs,
                      CopyMode mode, Lane& lane) {
  if (!is_host_accessible(from.kind()) || !is_host_accessible(to.kind())) {
    return StreamCopier(lane, {from, to}, mode).copy(pairs);
  }
  std::vector<CopySpan> spans;
  plan_copy(*from.geometry, *to.geometry, pairs, spans);
  for (const CopySpan& span : spans) {
    std::memcpy(to.address(span.destination), from.address(span.source), span.size_bytes);
  }
  return {};
}

}  // namespace

Result<> SlotMove::copy_to_image(PairRange range, const Memory& image, Lane& lane) const {
  const Geometry geometry = image_geometry(*disk_side().geometry, range.count);
  std::vector<BlockPair> in(pairs(range).begin(), pairs(range).end());
  for (std::uint32_t i = 0; i < in.size(); ++i) in[i].destination = i;
  return copy_between(source_, {&geometry, {&image.view, 1}}, in, mode_, lane);
}

Result<> SlotMove::copy_from_image(PairRange range, const Memory& image,
                                   std::span<const std::uint32_t> wrong, Lane& lane) const {
  const Geometry geometry = image_geometry(*disk_side().geometry, range.count);
  std::vector<BlockPair> out;
  for (std::uint32_t i = 0; i < range.count; ++i) {
    if (std::ranges::binary_search(wrong, i)) continue;
    out.push_back({i, pairs(range)[i].destination});
  }
  if (out.empty()) return {};
  return copy_between({&geometry, {&image.view, 1}}, destination_, out, mode_, lane);
}

Result<> SlotMove::transfer(std::span<const SlotRun> runs,
                            Result<> (DiskIo::*call)(int, std::span<const DiskRun>)) const {
  const Place& file = disk_side();
  std::vector<std::vector<DiskRun>> by_file(file.regions.size());
  for (const SlotRun& run : runs) {
    const PieceLocation at = file.geometry->locate({.block = run.slot});
    by_file[at.region].push_back({run.memory.data(),
                                  file.regions[at.region].file_offset_bytes() + at.offset_bytes -
                                      kSlotHeaderBytes + run.skip_bytes,
                                  run.memory.size()});
  }
  for (std::size_t i = 0; i < by_file.size(); ++i) {
    if (by_file[i].empty()) continue;
    // By rising offset, so that neighbours are joined.
    std::ranges::sort(by_file[i], {}, &DiskRun::offset_bytes);
    CAIRN_TRY((equipment_.disk.*call)(file.regions[i].fd(), by_file[i]));
  }
  return {};
}

}  // namespace cairn
