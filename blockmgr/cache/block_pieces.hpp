#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/transfer/piece_progress.hpp"

namespace cairn {

// Error: out_of_range for a piece, impossible for a shard that the block does not have.
Result<> check_part(const LayoutConfig& shape, const BlockPart& part);

// The others require check_part().

// The outer dimension's range that a part covers, in the layers that it covers.
Geometry::Outers outers_of(const LayoutConfig& shape, const BlockPart& part);
std::uint64_t part_bytes(const LayoutConfig& shape, const BlockPart& part);
PieceProgress::Range piece_range(const LayoutConfig& shape, const BlockPart& part);

// Returns the memory ranges of a block or a part, in canonical order. The CPU may be unable to
// reach them. REQUIRES: a layout in memory.
std::vector<iovec> bytes_in_place(const BlockLayout& layout, std::uint32_t block,
                                  const BlockPart& part);
// The same for a block that is stored in canonical order.
std::vector<iovec> bytes_in_canonical(std::byte* block, const LayoutConfig& shape,
                                      const BlockPart& part);

// Returns the XXH3 of a block's bytes, which `reader` fetched. Computes and keeps it if it is not
// known yet. REQUIRES: as BlockReader::checksum().
std::uint64_t kept_checksum(BlockReader& reader, std::span<const iovec> bytes);

}  // namespace cairn
