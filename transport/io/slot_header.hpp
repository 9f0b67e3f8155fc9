#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace cairn {

// A slot of a slot file is a header and a block. The header is a page of its own, so that the block
// behind it starts where direct I/O can take it from and put it into memory as it is.
inline constexpr std::uint64_t kSlotHeaderBytes = 4096;

// Whose a slot's bytes are, as the header tells it to the next start of the server.
struct BlockHeader {
  std::string key;     // its bytes; empty: nobody's yet
  std::string parent;  // empty: none
  std::string metadata;
  std::uint64_t generation = 0;
  std::uint64_t stamp = 0;              // rises with each header of a cache
  std::int64_t expires_at_unix_ms = 0;  // 0: never
  std::uint8_t priority = 0;
  std::uint32_t epoch = 1;  // of the metadata
};

struct SlotHeader {
  std::uint64_t file_id = 0;  // of the slot file that it was written for
  std::uint64_t slot = 0;
  std::uint64_t data_bytes = 0;
  std::uint64_t data_checksum = 0;
  BlockHeader block;
};

// Fills the page. Metadata that finds no room in it is left out.
// REQUIRES: key and parent of at most 64 bytes.
void encode_slot_header(const SlotHeader& header, std::span<std::byte, kSlotHeaderBytes> page);

// Nothing where the page is not a header, or not a whole one.
std::optional<SlotHeader> decode_slot_header(std::span<const std::byte, kSlotHeaderBytes> page);

}  // namespace cairn
