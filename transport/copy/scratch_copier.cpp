#include "transport/copy/scratch_copier.hpp"

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

}  // namespace

std::optional<ScratchCopier> ScratchCopier::make(StreamSet& streams, StreamCopier::Route route,
                                                 CopyMode mode) {
  if (streams.scratch() == nullptr) return std::nullopt;
  const bool load = route.destination.kind() == StorageKind::device;
  const Place& device = load ? route.destination : route.source;
  const Place& host = load ? route.source : route.destination;
  if (device.kind() != StorageKind::device || host.kind() != StorageKind::pinned) {
    return std::nullopt;
  }
  const std::size_t pieces = pieces_of_a_block(*device.geometry);
  const bool small = device.geometry->block_bytes() / pieces < kLeastWholePieceBytes;
  if (pieces == 1 || !small || pieces_of_a_block(*host.geometry) != 1) return std::nullopt;
  return ScratchCopier(streams, route, mode);
}

Result<std::unique_ptr<Event>> ScratchCopier::begin(std::span<const BlockPair> pairs) {
  const bool load = route_.destination.kind() == StorageKind::device;
  const int device_id = (load ? route_.destination : route_.source).device_id();
  auto stream = streams_.stream(device_id);
  if (!stream) return std::move(stream).error();
  const Geometry geometry = whole_blocks(*route_.source.geometry, pairs.size());
  // Freed when this function returns; only work issued later on the stream reuses it.
  auto buffer = streams_.scratch()->allocate(device_id, geometry.region_bytes(), **stream);
  if (!buffer) return Error{ErrorCode::no_capacity, std::move(buffer).error().detail};
  const RegionView memory = buffer->view();
  const Place scratch{&geometry, {&memory, 1}};
  std::vector<BlockPair> in(pairs.begin(), pairs.end());
  std::vector<BlockPair> out(pairs.begin(), pairs.end());
  for (std::uint32_t i = 0; i < pairs.size(); ++i) in[i].destination = out[i].source = i;
  auto gathered = StreamCopier(streams_, {route_.source, scratch}, mode_).begin(in);
  if (!gathered) return std::move(gathered).error();
  return StreamCopier(streams_, {scratch, route_.destination}, mode_).begin(out);
}

}  // namespace cairn
