#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "layouts/block_layout.hpp"
#include "transport/io/disk_io.hpp"
#include "transport/io/slot_checksums.hpp"
#include "transport/io/slot_header.hpp"

namespace cairn {

// What a start asks of the slots themselves, beyond what an index tells of them.
struct DiskTierSlots {
  DiskIo& disk;
  const BlockLayout& layout;
  const SlotChecksums& slots;
};

// The headers that are whole and were written for this file and slot: of all slots, which takes a
// read of a page each, or of some. io_error: the file cannot be read at all.
struct HeaderScan {
  std::vector<SlotHeader> headers;  // of named blocks, by slot
  std::uint64_t torn = 0;           // neither a header nor never written
};
Result<HeaderScan> scan_headers(const DiskTierSlots& tier);
Result<HeaderScan> scan_headers(const DiskTierSlots& tier, std::span<const std::uint32_t> slots);

// Of each slot, whether its block can be read and has that checksum. Reads all of these blocks.
struct ClaimedBlock {
  std::uint32_t slot = 0;
  std::uint64_t data_checksum = 0;
};
Result<std::vector<bool>> are_whole(const DiskTierSlots& tier,
                                    std::span<const ClaimedBlock> blocks);

// Puts each before its block. io_error; no_capacity.
Result<> write_headers(const DiskTierSlots& tier, std::span<const SlotHeader> headers);

}  // namespace cairn
