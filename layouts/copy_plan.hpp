#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layouts/geometry.hpp"

namespace cairn {

// Bytes that are contiguous on both sides.
struct CopySpan {
  PieceLocation source;
  PieceLocation destination;
  std::uint64_t size_bytes = 0;

  friend bool operator==(const CopySpan&, const CopySpan&) = default;
};

struct BlockPair {
  std::uint32_t source = 0;
  std::uint32_t destination = 0;
};

// Plans the copy of each pair's source block to its destination block: every byte once, in the
// fewest spans, sorted by source, without padding. Appends to `spans`. REQUIRES: same_shape();
// block numbers in bounds; no destination block twice.
void plan_copy(const Geometry& source, const Geometry& destination,
               std::span<const BlockPair> pairs, std::vector<CopySpan>& spans);

// A block's bytes in canonical order [layer][outer][page][inner], with contiguous runs joined.
// Appends to `spans`.
struct BlockSpan {
  PieceLocation location;
  std::uint64_t size_bytes = 0;
};
void plan_canonical(const Geometry& geometry, std::uint32_t block, std::vector<BlockSpan>& spans);

}  // namespace cairn
