#include "tests/transport/support.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/hash.hpp"
#include "layouts/builder.hpp"
#include "memory/host/host_runtime.hpp"
#include "transport/io/slot_file.hpp"

namespace cairn::test {
namespace {

template <class T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().detail);
  return std::move(*result);
}

void must(const Result<>& result) {
  if (!result) throw std::runtime_error(result.error().detail);
}

}  // namespace

std::string_view to_string(Arrangement arrangement) {
  switch (arrangement) {
    case Arrangement::contiguous:
      return "contiguous";
    case Arrangement::layer_first:
      return "layer_first";
    case Arrangement::layer_second:
      return "layer_second";
    case Arrangement::padded:
      return "padded";
  }
  return "?";
}

Bytes pattern(std::uint64_t seed, std::uint64_t size_bytes) {
  Bytes bytes(size_bytes);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (std::uint64_t at = 0; at < size_bytes; at += sizeof(state)) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const std::uint64_t mixed = state ^ (state >> 29);
    std::memcpy(bytes.data() + at, &mixed, std::min(sizeof(mixed), size_bytes - at));
  }
  return bytes;
}

bool same(const Bytes& a, const Bytes& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

Storage::Storage()
    : runtime_(must(make_host_runtime({.devices = 2, .device_bytes = 1ull << 30}))),
      stream_(must(runtime_->create_stream(0))) {}

LayoutConfig Storage::small_shape(std::uint64_t num_blocks) {
  return {.num_blocks = num_blocks,
          .num_layers = 3,
          .outer_dim = 2,
          .page_size = 4,
          .inner_dim = 5,
          .dtype_width_bytes = 2,
          .alignment = 1};
}

BlockLayout Storage::make(StorageKind kind, Arrangement arrangement, LayoutConfig shape) {
  if (kind == StorageKind::disk) return make_slot_file(shape);
  if (arrangement == Arrangement::padded) shape.alignment = 512;
  auto place = [&]() -> PlacedLayout {
    auto configured = LayoutBuilder().config(shape);
    switch (arrangement) {
      case Arrangement::layer_first:
        return std::move(configured).layer_separate(BlockDim::first);
      case Arrangement::layer_second:
        return std::move(configured).layer_separate(BlockDim::second);
      case Arrangement::contiguous:
      case Arrangement::padded:
        break;
    }
    return std::move(configured).fully_contiguous();
  };
  auto back = [&](PlacedLayout placed) -> BackedLayout {
    switch (kind) {
      case StorageKind::pinned:
        return std::move(placed).allocate_pinned(*runtime_, {});
      case StorageKind::device:
        return std::move(placed).allocate_device(*runtime_, {.device_id = 1});
      case StorageKind::unified:
        return std::move(placed).allocate_unified(*runtime_, 1);
      case StorageKind::disk:
      case StorageKind::system:
        break;
    }
    return std::move(placed).allocate_system();
  };
  BlockLayout layout = must(back(place()).build());
  for (const RegionView& region : layout.regions()) {
    Bytes untouched(layout.geometry().region_bytes(), kUntouched);
    access(Direction::write, region, 0, untouched);
  }
  return layout;
}

BlockLayout Storage::make_slot_file(LayoutConfig shape) {
  SlotFile file = must(open_slot_file({.paths = {folder_.path() / std::to_string(files_++)},
                                       .owner = "test",
                                       .shape = shape,
                                       .direct = false}));
  slots_[file.layout.regions()[0].fd()] = std::move(file.slots);
  const Bytes untouched(file.layout.geometry().block_bytes(), kUntouched);
  for (std::uint32_t block = 0; block < shape.num_blocks; ++block) {
    write_block(file.layout, block, untouched);
  }
  return std::move(file.layout);
}

SlotContents* Storage::slots_of(const BlockLayout& layout) const {
  if (layout.storage_kind() != StorageKind::disk) return nullptr;
  const auto found = slots_.find(layout.regions()[0].fd());
  return found == slots_.end() ? nullptr : found->second.get();
}

void Storage::access(Direction direction, const RegionView& region, std::uint64_t offset_bytes,
                     std::span<std::byte> bytes) {
  if (region.kind() == StorageKind::disk) {
    const auto at = static_cast<off_t>(region.file_offset_bytes() + offset_bytes);
    const ssize_t moved = direction == Direction::read
                              ? ::pread(region.fd(), bytes.data(), bytes.size(), at)
                              : ::pwrite(region.fd(), bytes.data(), bytes.size(), at);
    if (moved != static_cast<ssize_t>(bytes.size())) throw std::runtime_error("a test's file I/O");
    return;
  }
  std::byte* const memory = region.data() + offset_bytes;
  const MemoryCopy copy =
      direction == Direction::read
          ? MemoryCopy{.destination = bytes.data(), .source = memory, .size_bytes = bytes.size()}
          : MemoryCopy{.destination = memory, .source = bytes.data(), .size_bytes = bytes.size()};
  must(stream_->copy({&copy, 1}));
  must(must(stream_->record())->wait());
}

void Storage::access_block(Direction direction, const BlockLayout& layout, std::uint32_t block,
                           std::span<std::byte> canonical) {
  const Geometry& geometry = layout.geometry();
  std::uint64_t done = 0;
  for (std::uint64_t layer = 0; layer < layout.config().num_layers; ++layer) {
    for (std::uint64_t outer = 0; outer < layout.config().outer_dim; ++outer) {
      const PieceLocation at = geometry.locate({.block = block, .layer = layer, .outer = outer});
      access(direction, layout.regions()[at.region], at.offset_bytes,
             canonical.subspan(done, geometry.piece_bytes()));
      done += geometry.piece_bytes();
    }
  }
}

void Storage::write_block(const BlockLayout& layout, std::uint32_t block, const Bytes& canonical) {
  Bytes bytes = canonical;
  access_block(Direction::write, layout, block, bytes);
  if (SlotContents* const slots = slots_of(layout))
    slots->set_written(block, {.checksum = hash_bytes(bytes, 0)});
}

Bytes Storage::read_block(const BlockLayout& layout, std::uint32_t block) {
  Bytes bytes(layout.geometry().block_bytes());
  access_block(Direction::read, layout, block, bytes);
  return bytes;
}

std::vector<Bytes> Storage::image(const BlockLayout& layout) {
  std::vector<Bytes> images;
  for (const RegionView& region : layout.regions()) {
    images.emplace_back(layout.geometry().region_bytes());
    access(Direction::read, region, 0, images.back());
  }
  return images;
}

PendingJob submit(TransferScheduler& scheduler, TransferJob job) {
  auto promise = std::make_shared<std::promise<JobOutcome>>();
  std::future<JobOutcome> outcome = promise->get_future();
  job.on_complete = [promise](JobOutcome reached) { promise->set_value(std::move(reached)); };
  const JobId id = must(scheduler.submit(std::move(job)));
  return {id, std::move(outcome)};
}

JobOutcome run(TransferScheduler& scheduler, TransferJob job) {
  return submit(scheduler, std::move(job)).outcome.get();
}

TransferJob Storage::make_job(const BlockLayout& source, const BlockLayout& destination,
                              std::vector<BlockPair> pairs) const {
  TransferJob job;
  job.source = &source;
  job.destination = &destination;
  job.pairs = std::move(pairs);
  job.slots = slots_of(source) != nullptr ? slots_of(source) : slots_of(destination);
  return job;
}

std::vector<BlockPair> straight_pairs(std::uint32_t count) {
  std::vector<BlockPair> pairs(count);
  for (std::uint32_t i = 0; i < count; ++i) pairs[i] = {i, i};
  return pairs;
}

}  // namespace cairn::test
