#include "blockmgr/cache/block_pieces.hpp"

#include <string>

#include "base/pieces.hpp"

namespace cairn {
namespace {

Result<> check_shard(const LayoutConfig& shape, ShardSelector part) {
  const auto impossible = [](std::string detail) {
    return Error{ErrorCode::impossible, std::move(detail)};
  };
  if (shape.shards == 0) {
    return impossible("shards is " + std::to_string(part.shards) +
                      ", and the layout of these blocks has no shards");
  }
  if (part.shards == 0 || shape.shards % part.shards != 0) {
    return impossible("shards is " + std::to_string(part.shards) +
                      ", which does not divide the layout's shards, " +
                      std::to_string(shape.shards));
  }
  if (part.shard >= part.shards) {
    return impossible("shard is " + std::to_string(part.shard) + "; with shards " +
                      std::to_string(part.shards) + " it is at most " +
                      std::to_string(part.shards - 1));
  }
  return {};
}

}  // namespace

Result<> check_part(const LayoutConfig& shape, const BlockPart& part) {
  if (const auto& shard = part.shard()) return check_shard(shape, *shard);
  const auto& piece = part.piece();
  if (!piece || (piece->layer < shape.num_layers && piece->outer < shape.outer_dim)) return {};
  return Error{ErrorCode::out_of_range, "layer " + std::to_string(piece->layer) + ", outer " +
                                            std::to_string(piece->outer) + " of a block with " +
                                            std::to_string(shape.num_layers) + " layers of " +
                                            std::to_string(shape.outer_dim)};
}

Geometry::Outers outers_of(const LayoutConfig& shape, const BlockPart& part) {
  if (const auto& piece = part.piece()) return {.first = piece->outer, .count = 1};
  const ShardSelector shard = part.shard().value_or(ShardSelector{});
  const std::uint64_t count = shape.outer_dim / shard.shards;
  return {.first = shard.shard * count, .count = count};
}

std::uint64_t part_bytes(const LayoutConfig& shape, const BlockPart& part) {
  const std::uint64_t layers = part.piece() ? 1 : shape.num_layers;
  return layers * outers_of(shape, part).count * piece_bytes(shape);
}

PieceProgress::Range piece_range(const LayoutConfig& shape, const BlockPart& part) {
  const auto row_pieces = static_cast<std::uint32_t>(shape.outer_dim);
  const auto layers = static_cast<std::uint32_t>(shape.num_layers);
  if (const auto& piece = part.piece()) {
    return {.first = piece->layer * row_pieces + piece->outer, .count = 1};
  }
  if (part.is_whole()) return {.first = 0, .count = layers * row_pieces};
  const Geometry::Outers outers = outers_of(shape, part);
  return {.first = static_cast<std::uint32_t>(outers.first),
          .count = static_cast<std::uint32_t>(outers.count),
          .rows = layers,
          .row_pieces = row_pieces};
}

std::vector<iovec> bytes_in_place(const BlockLayout& layout, std::uint32_t block,
                                  const BlockPart& part) {
  const Geometry& geometry = layout.geometry();
  if (const auto& piece = part.piece()) {
    const PieceLocation at =
        geometry.locate({.block = block, .layer = piece->layer, .outer = piece->outer});
    return {{layout.address(at), geometry.piece_bytes()}};
  }
  std::vector<BlockSpan> spans;
  if (part.is_whole()) {
    plan_canonical(geometry, block, spans);
  } else {
    plan_canonical(geometry.with_outers(outers_of(layout.config(), part)), block, spans);
  }
  std::vector<iovec> bytes;
  bytes.reserve(spans.size());
  for (const BlockSpan& span : spans) {
    bytes.push_back({layout.address(span.location), span.size_bytes});
  }
  return bytes;
}

std::vector<iovec> bytes_in_canonical(std::byte* block, const LayoutConfig& shape,
                                      const BlockPart& part) {
  if (part.is_whole()) return {{block, block_bytes(shape)}};
  const std::uint64_t layer_bytes = shape.outer_dim * piece_bytes(shape);
  const Geometry::Outers outers = outers_of(shape, part);
  std::byte* const first = block + outers.first * piece_bytes(shape);
  if (const auto& piece = part.piece()) {
    return {{first + piece->layer * layer_bytes, piece_bytes(shape)}};
  }
  std::vector<iovec> bytes;
  for (std::uint64_t layer = 0; layer < shape.num_layers; ++layer) {
    bytes.push_back({first + layer * layer_bytes, outers.count * piece_bytes(shape)});
  }
  return bytes;
}

std::uint64_t kept_checksum(BlockReader& reader, std::span<const iovec> bytes) {
  if (const auto known = reader.checksum()) return *known;
  const std::uint64_t checksum = checksum_of(bytes);
  reader.keep_checksum(checksum);
  return checksum;
}

}  // namespace cairn
