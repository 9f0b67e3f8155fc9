#include "transport/copy/block_copier.hpp"

#include <utility>

#include "layouts/geometry.hpp"

namespace cairn {
namespace {

// Pieces of this size reach the bus's full speed on their own.
constexpr std::uint64_t kLeastWholePieceBytes = 128ull << 10;

// Contiguous blocks.
Geometry whole_blocks(const Geometry& like, std::size_t count) {
  LayoutConfig shape = like.config();
  shape.num_blocks = count;
  shape.alignment = 1;
  return Geometry::fully_contiguous(shape);
}

// Number of copies between one block here and a contiguous block.
std::size_t pieces_of_a_block(const Geometry& geometry) {
  std::vector<CopySpan> spans;
  const BlockPair pair{};
  plan_copy(geometry, whole_blocks(geometry, 1), {&pair, 1}, spans);
  return spans.size();
}

bool is_load(const StreamCopier::Route& route) {
  return route.destination.kind() == StorageKind::device;
}

bool gains_by_scratch(const StreamCopier::Route& route, const CopyMode& mode) {
  // Without a bus between the two, the way through scratch memory is one more copy.
  if (mode.visibility == MemoryVisibility::system) return false;
  const Place& device = is_load(route) ? route.destination : route.source;
  const Place& host = is_load(route) ? route.source : route.destination;
  if (device.kind() != StorageKind::device || host.kind() != StorageKind::pinned) return false;
  const std::size_t pieces = pieces_of_a_block(*device.geometry);
  const bool small = device.geometry->block_bytes() / pieces < kLeastWholePieceBytes;
  return pieces > 1 && small && pieces_of_a_block(*host.geometry) == 1;
}

}  // namespace

BlockCopier::BlockCopier(StreamSet& streams, StreamCopier::Route route, CopyMode mode)
    : streams_(streams),
      route_(route),
      mode_(mode),
      direct_(streams, route, mode),
      by_scratch_(gains_by_scratch(route, mode)) {}

Result<std::unique_ptr<Event>> BlockCopier::begin(std::span<const BlockPair> pairs) {
  if (by_scratch_) {
    auto event = begin_by_scratch(pairs);
    if (event || event.error().code != ErrorCode::no_capacity) return event;
    by_scratch_ = false;
  }
  return direct_.begin(pairs);
}

// The two halves have a stream each, and the second waits for the first on the device. So the bus
// carries the next batch while the device still scatters this one.
Result<std::unique_ptr<Event>> BlockCopier::begin_by_scratch(std::span<const BlockPair> pairs) {
  const bool load = is_load(route_);
  const int device_id = (load ? route_.destination : route_.source).device_id();
  const StreamUse first = load ? StreamUse::bus : StreamUse::within;
  const StreamUse second = load ? StreamUse::within : StreamUse::bus;
  auto filling = streams_.stream(device_id, first);
  if (!filling) return std::move(filling).error();
  auto emptying = streams_.stream(device_id, second);
  if (!emptying) return std::move(emptying).error();
  const Geometry geometry = whole_blocks(*route_.source.geometry, pairs.size());
  // Freed when this function returns, and reused when the second stream is done with it.
  auto buffer = streams_.memory().allocate(device_id, geometry.region_bytes(), **filling);
  if (!buffer) return Error{ErrorCode::no_capacity, std::move(buffer).error().detail};
  if (auto recorded = buffer->record_stream(**emptying); !recorded) {
    return Error{ErrorCode::no_capacity, std::move(recorded).error().detail};
  }
  const RegionView memory = buffer->view();
  const Place scratch{&geometry, {&memory, 1}};
  std::vector<BlockPair> in(pairs.begin(), pairs.end());
  std::vector<BlockPair> out(pairs.begin(), pairs.end());
  for (std::uint32_t i = 0; i < pairs.size(); ++i) in[i].destination = out[i].source = i;
  CopyMode without_waiting = mode_;
  without_waiting.strategy = CopyStrategy::async;
  auto filled = StreamCopier(streams_, {route_.source, scratch}, without_waiting, first).begin(in);
  if (!filled) return std::move(filled).error();
  CAIRN_TRY((*emptying)->wait_for(**filled));
  return StreamCopier(streams_, {scratch, route_.destination}, mode_, second).begin(out);
}

Result<> BlockCopier::copy(std::span<const BlockPair> pairs) {
  Result<> copied;
  if (auto event = begin(pairs)) {
    copied = wait_for_event(**event, mode_);
  } else {
    copied = std::move(event).error();
  }
  if (!copied) abandon();
  return copied;
}

}  // namespace cairn
