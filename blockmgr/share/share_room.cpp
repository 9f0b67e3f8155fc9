#include "blockmgr/share/share_room.hpp"

#include <cstring>
#include <string>

#include "blockmgr/cache/awaited.hpp"

namespace cairn {
namespace {

// Blocks on their way between packing memory and a tier: enough for both workers of the engine and
// the disk's depth, few enough to leave staging memory to clients.
constexpr std::uint32_t kMostInFlight = 16;

}  // namespace

bool ShareRoom::reaches(Tier tier) const {
  return is_host_memory(cache_.layout(tier)->storage_kind());
}

std::size_t ShareRoom::add_source(BlockReader& reader) {
  Block& block = blocks_.emplace_back();
  block.reader = &reader;
  block.in_place = reaches(reader.handle().tier);
  return blocks_.size() - 1;
}

std::size_t ShareRoom::add_target(BlockWriter& writer, const BlockHandle& handle) {
  Block& block = blocks_.emplace_back();
  block.writer = &writer;
  block.in_place = reaches(handle.tier);
  return blocks_.size() - 1;
}

std::size_t ShareRoom::add_waste() {
  blocks_.emplace_back();
  return blocks_.size() - 1;
}

Result<> ShareRoom::open() {
  const std::uint64_t block_bytes = cache_.block_bytes();
  std::uint64_t packed = 0;
  for (const Block& block : blocks_) packed += block.in_place ? 0u : 1u;
  if (packed > 0) {
    auto slot = packing_.acquire(packed * block_bytes);
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

void ShareRoom::fetch_all() {
  InFlight flight(kMostInFlight);
  for (Block& block : blocks_) {
    if (block.reader == nullptr && !(block.writer != nullptr && block.in_place)) continue;
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
      // Not with the round: it may have more blocks than there is staging, and would wait for what
      // it holds itself.
      if (!block.in_place) const BlockReader gone(std::move(*block.reader));
      flight.end();
    };
    flight.begin();
    if (block.reader != nullptr) {
      block.reader->fetch(ready);
    } else {
      block.writer->room(ready);
    }
  }
  flight.wait_all();
  for (Block& block : blocks_) {
    if (block.error && block.reader != nullptr && !block.in_place) {
      // Not what the memory's last user left.
      std::memset(block.pieces.front().iov_base, 0, block.pieces.front().iov_len);
    }
  }
}

BlockSeal ShareRoom::seal(std::size_t block) const {
  if (blocks_[block].error) return {};
  return {.checksum = block_checksum(blocks_[block].pieces, piece_bytes(cache_.config().shape)),
          .whole = 1};
}

void ShareRoom::store(std::span<const std::size_t> targets, std::span<const BlockSeal> seals) {
  InFlight flight(kMostInFlight);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    Block& block = blocks_[targets[i]];
    if (block.error) continue;
    if (seals[i].whole == 0) {
      block.error = Error{ErrorCode::io_error, "the rank that holds it could not read it"};
      continue;
    }
    if (seal(targets[i]).checksum != seals[i].checksum) {
      block.error = Error{ErrorCode::checksum_mismatch, "what arrived is not what was sent"};
      continue;
    }
    const auto finished = [&block, &flight](Result<> written) {
      if (!written) block.error = written.error();
      flight.end();
    };
    flight.begin();
    if (block.in_place) {
      block.writer->finish(finished);
      continue;
    }
    block.writer->room([&block, &flight, finished](Result<std::span<const iovec>> room) {
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
      block.writer->finish(finished);
    });
  }
  flight.wait_all();
}

}  // namespace cairn
