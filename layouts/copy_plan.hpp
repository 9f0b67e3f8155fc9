#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layouts/geometry.hpp"

namespace cairn {

// A run of bytes that is contiguous on both sides.
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

// What to copy so that each pair's destination block holds its source block's bytes: every byte
// exactly once, in the fewest spans (two runs that touch on both sides are one), ordered by source.
// Padding is not copied. Appends to `spans`. REQUIRES: same_shape of both, block numbers within
// bounds, no destination block twice.
void plan_copy(const Geometry& source, const Geometry& destination,
               std::span<const BlockPair> pairs, std::vector<CopySpan>& spans);

// The same for one block, in canonical order [layer][outer][page][inner]: where its bytes lie, with
// runs that touch joined. Appends.
struct BlockSpan {
  PieceLocation location;
  std::uint64_t size_bytes = 0;
};
void plan_canonical(const Geometry& geometry, std::uint32_t block, std::vector<BlockSpan>& spans);

}  // namespace cairn
