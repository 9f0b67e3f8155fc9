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

// Returns the memory ranges of a block or piece, in canonical order. The CPU may be unable to reach
// them. REQUIRES: check_piece(); a layout in memory.
std::vector<iovec> bytes_in_place(const BlockLayout& layout, std::uint32_t block,
                                  std::optional<PieceSelector> piece);
// The same for a block that is stored in canonical order.
iovec bytes_in_canonical(std::byte* block, const LayoutConfig& shape,
                         std::optional<PieceSelector> piece);

PieceProgress::Range piece_range(const LayoutConfig& shape, std::optional<PieceSelector> piece);
Result<> check_piece(const LayoutConfig& shape, std::optional<PieceSelector> piece);

// Returns the XXH3 of a block's bytes, which `reader` fetched. Computes and keeps it if it is not
// known yet. REQUIRES: as BlockReader::checksum().
std::uint64_t kept_checksum(BlockReader& reader, std::span<const iovec> bytes);

}  // namespace cairn
