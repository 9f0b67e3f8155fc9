#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/record/block_record.hpp"

namespace cairn {

// A slot of a slot file is a header and a block. The header is a page of its own, so that the block
// behind it starts where direct I/O can take it from and put it into memory as it is.
inline constexpr std::uint64_t kSlotHeaderBytes = 4096;

struct SlotPlace {
  std::uint64_t file_id = 0;  // of the slot file that the header was written for
  std::uint64_t slot = 0;
  std::uint64_t generation = 0;
  std::uint64_t stamp = 0;  // rises with each header of a cache
};
// What the header tells the next start of the server. Without a key the slot is free.
struct SlotHeader {
  BlockRecord block = {};
  SlotPlace place = {};
};

// Fills the page. Leaves out metadata that the page has no room for.
// REQUIRES: key and parent have at most kMaxKeyBytes bytes.
void encode_slot_header(const SlotHeader& header, std::span<std::byte, kSlotHeaderBytes> page);

// nullopt unless the page is a whole header.
std::optional<SlotHeader> decode_slot_header(std::span<const std::byte, kSlotHeaderBytes> page);

}  // namespace cairn
