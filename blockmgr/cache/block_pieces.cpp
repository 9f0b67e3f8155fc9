#include "blockmgr/cache/block_pieces.hpp"

#include <string>

#include "base/pieces.hpp"

namespace cairn {

std::vector<iovec> bytes_in_place(const BlockLayout& layout, std::uint32_t block,
                                  std::optional<PieceSelector> piece) {
  const Geometry& geometry = layout.geometry();
  if (piece) {
    const PieceLocation at =
        geometry.locate({.block = block, .layer = piece->layer, .outer = piece->outer});
    return {{layout.address(at), geometry.piece_bytes()}};
  }
  std::vector<BlockSpan> spans;
  plan_canonical(geometry, block, spans);
  std::vector<iovec> bytes;
  bytes.reserve(spans.size());
  for (const BlockSpan& span : spans) {
    bytes.push_back({layout.address(span.location), span.size_bytes});
  }
  return bytes;
}

iovec bytes_in_canonical(std::byte* block, const LayoutConfig& shape,
                         std::optional<PieceSelector> piece) {
  if (!piece) return {block, block_bytes(shape)};
  const auto range = piece_range(shape, piece);
  return {block + range.first * piece_bytes(shape), piece_bytes(shape)};
}

PieceProgress::Range piece_range(const LayoutConfig& shape, std::optional<PieceSelector> piece) {
  const auto outers = static_cast<std::uint32_t>(shape.outer_dim);
  if (piece) return {.first = piece->layer * outers + piece->outer, .count = 1};
  return {.first = 0, .count = static_cast<std::uint32_t>(shape.num_layers) * outers};
}

Result<> check_piece(const LayoutConfig& shape, std::optional<PieceSelector> piece) {
  if (!piece || (piece->layer < shape.num_layers && piece->outer < shape.outer_dim)) return {};
  return Error{ErrorCode::out_of_range, "layer " + std::to_string(piece->layer) + ", outer " +
                                            std::to_string(piece->outer) + " of a block with " +
                                            std::to_string(shape.num_layers) + " layers of " +
                                            std::to_string(shape.outer_dim)};
}

std::uint64_t kept_checksum(BlockReader& reader, std::span<const iovec> bytes) {
  if (const auto known = reader.checksum()) return *known;
  const std::uint64_t checksum = checksum_of(bytes);
  reader.keep_checksum(checksum);
  return checksum;
}

}  // namespace cairn
