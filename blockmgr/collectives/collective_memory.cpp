#include "blockmgr/collectives/collective_memory.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "blockmgr/cache/awaited.hpp"
#include "blockmgr/cache/block_pieces.hpp"

namespace cairn {
namespace {

// Blocks in transit between packing memory and a tier: enough for both workers of the scheduler and
// the disk's depth, few enough to leave staging memory to clients.
constexpr std::uint32_t kMostInFlight = 16;

// Each piece of a block is copied separately on the device. Below this size, packing memory is
// faster.
constexpr std::uint64_t kLeastPieceBytes = 64ull << 10;

}  // namespace

bool CollectiveMemory::takes_directly(Tier tier) const {
  const BlockLayout& layout = *cache_.layout(tier);
  if (!means_.device_memory || layout.storage_kind() != StorageKind::device) return false;
  const auto pieces = bytes_in_place(layout, 0, std::nullopt);
  return pieces.size() == 1 || std::ranges::all_of(pieces, [](const iovec& piece) {
           return piece.iov_len >= kLeastPieceBytes;
         });
}

bool CollectiveMemory::reaches(Tier tier) const {
  return is_host_memory(cache_.layout(tier)->storage_kind());
}

std::size_t CollectiveMemory::add_source(BlockReader& reader) {
  Block& block = blocks_.emplace_back();
  block.reader = &reader;
  const Tier tier = reader.handle().tier;
  block.direct = takes_directly(tier);
  block.in_place = block.direct || reaches(tier);
  if (block.direct) block.pieces = reader.in_place();
  return blocks_.size() - 1;
}

std::size_t CollectiveMemory::add_target(Ingest& ingest, std::size_t item) {
  Block& block = blocks_.emplace_back();
  block.ingest = &ingest;
  block.item = item;
  const Tier tier = ingest.items()[item].block.handle.tier;
  block.direct = takes_directly(tier);
  block.in_place = block.direct || reaches(tier);
  if (block.direct) block.pieces = ingest.in_place(item);
  return blocks_.size() - 1;
}

std::size_t CollectiveMemory::add_waste() {
  blocks_.emplace_back();
  return blocks_.size() - 1;
}

Result<> CollectiveMemory::open() {
  const std::uint64_t block_bytes = cache_.block_bytes();
  std::uint64_t packed = 0;
  for (const Block& block : blocks_) packed += block.in_place ? 0u : 1u;
  if (packed > 0) {
    auto slot = means_.packing.acquire(packed * block_bytes);
    if (!slot) return std::move(slot).error();
    slot_.emplace(std::move(*slot));
  }
  std::byte* next = slot_ ? slot_->data() : nullptr;
  for (Block& block : blocks_) {
    if (block.in_place) continue;
    block.pieces = {{next, block_bytes}};
    next += block_bytes;
  }
  fetch_all();
  return {};
}

void CollectiveMemory::fetch_all() {
  InFlight flight(kMostInFlight);
  for (Block& block : blocks_) {
    if (block.direct) continue;
    if (block.reader == nullptr && !(block.ingest != nullptr && block.in_place)) continue;
    const auto ready = [&block, &flight](Result<std::span<const iovec>> bytes) {
      if (!bytes) {
        block.error = bytes.error();
      } else if (block.in_place) {
        block.pieces.assign(bytes->begin(), bytes->end());
      } else {
        auto* to = static_cast<std::byte*>(block.pieces.front().iov_base);
        for (const iovec& piece : *bytes) {
          std::memcpy(to, piece.iov_base, piece.iov_len);
          to += piece.iov_len;
        }
      }
      // Released now, not with the round: a round may have more blocks than fit into staging
      // memory, and would wait for itself.
      if (!block.in_place) const BlockReader gone(std::move(*block.reader));
      flight.end();
    };
    flight.begin();
    if (block.reader != nullptr) {
      block.reader->fetch(ready);
    } else {
      block.ingest->room(block.item, ready);
    }
  }
  flight.wait_all();
  for (Block& block : blocks_) {
    if (block.error && block.reader != nullptr && !block.in_place) {
      // Do not send what the memory's last user left.
      std::memset(block.pieces.front().iov_base, 0, block.pieces.front().iov_len);
    }
  }
}

BlockChecksum CollectiveMemory::checksum(std::size_t block) const {
  if (blocks_[block].error) return {};
  if (blocks_[block].direct) return {.kind = BlockChecksum::Kind::unchecked};
  return {.value = block_checksum(blocks_[block].pieces, piece_bytes(cache_.config().shape)),
          .kind = BlockChecksum::Kind::checked};
}

void CollectiveMemory::store(std::span<const std::size_t> targets,
                             std::span<const BlockChecksum> checksums) {
  InFlight flight(kMostInFlight);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    Block& block = blocks_[targets[i]];
    if (block.error) continue;
    const BlockChecksum& sent = checksums[i];
    const bool may_be_unchecked = means_.device_memory;
    if (sent.kind != BlockChecksum::Kind::checked &&
        !(may_be_unchecked && sent.kind == BlockChecksum::Kind::unchecked)) {
      block.error = Error{ErrorCode::io_error, "the rank that holds it could not read it"};
      continue;
    }
    const BlockChecksum came = checksum(targets[i]);
    if (came.kind == sent.kind && came.value != sent.value) {
      block.error = Error{ErrorCode::checksum_mismatch, "the block arrived damaged"};
      continue;
    }
    const auto finished = [&block, &flight](Result<> written) {
      if (!written) block.error = written.error();
      flight.end();
    };
    flight.begin();
    if (block.in_place) {
      block.ingest->finish(block.item, finished);
      continue;
    }
    block.ingest->room(
        block.item, [&block, &flight, finished](Result<std::span<const iovec>> room) {
          if (!room) {
            block.error = room.error();
            flight.end();
            return;
          }
          const auto* from = static_cast<const std::byte*>(block.pieces.front().iov_base);
          for (const iovec& piece : *room) {
            std::memcpy(piece.iov_base, from, piece.iov_len);
            from += piece.iov_len;
          }
          block.ingest->finish(block.item, finished);
        });
  }
  flight.wait_all();
}

}  // namespace cairn
