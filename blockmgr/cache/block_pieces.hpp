#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/cache/piece_progress.hpp"

namespace cairn {

// Where a block's bytes, or a piece's, lie in memory, in canonical order.
// REQUIRES: check_piece(), a layout in memory, which the CPU need not reach.
std::vector<iovec> bytes_in_place(const BlockLayout& layout, std::uint32_t block,
                                  std::optional<PieceSelector> piece);
// The same in a block in canonical order.
iovec bytes_in_canonical(std::byte* block, const LayoutConfig& shape,
                         std::optional<PieceSelector> piece);

PieceProgress::Range piece_range(const LayoutConfig& shape, std::optional<PieceSelector> piece);
Result<> check_piece(const LayoutConfig& shape, std::optional<PieceSelector> piece);

// XXH3 of a block's bytes, as its reader fetched them: computed where nobody has, and then kept.
// REQUIRES: as BlockReader::checksum().
std::uint64_t kept_checksum(BlockReader& reader, std::span<const iovec> bytes);

}  // namespace cairn
