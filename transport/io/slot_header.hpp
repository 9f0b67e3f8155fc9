#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/record/block_record.hpp"

namespace cairn {

// A slot consists of a header and a block. The header takes a whole page, so that the block after
// it is aligned for direct I/O.
inline constexpr std::uint64_t kSlotHeaderBytes = 4096;

struct SlotPlace {
  std::uint64_t file_id = 0;  // the slot file that the header was written for
  std::uint64_t slot = 0;
  std::uint64_t generation = 0;
  std::uint64_t stamp = 0;          // increases with each header of a cache
  std::uint64_t encoded_bytes = 0;  // of the block as it lies there; 0: as it is
};
// What the next start of the server reads. Without a key the slot is free.
struct SlotHeader {
  BlockRecord block = {};
  SlotPlace place = {};
};

// Fills the page, without the metadata if there is no room for it. REQUIRES: key and parent have at
// most kMaxKeyBytes bytes.
void encode_slot_header(const SlotHeader& header, std::span<std::byte, kSlotHeaderBytes> page);

// nullopt if the page is not an intact header.
std::optional<SlotHeader> decode_slot_header(std::span<const std::byte, kSlotHeaderBytes> page);

}  // namespace cairn
