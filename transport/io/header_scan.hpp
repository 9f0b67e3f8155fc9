#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "layouts/block_layout.hpp"
#include "transport/io/disk_io.hpp"
#include "transport/io/slot_contents.hpp"
#include "transport/io/slot_header.hpp"
#include "transport/record/medium_codec.hpp"

namespace cairn {

// The slots of a tier that a server start scans.
struct DiskTierSlots {
  DiskIo& disk;
  const BlockLayout& layout;
  const SlotContents& slots;
  MediumCodec& codec;
};

// Finds the intact headers that were written for this file and slot. A block may be smaller than
// those of the layout. A scan of all slots reads one
// page per slot. Error: io_error if the file cannot be read at all.
struct HeaderScan {
  std::vector<SlotHeader> headers;  // of blocks with a key, by slot
  std::uint64_t torn = 0;           // slots whose page is neither zeros nor a valid header
};
Result<HeaderScan> scan_headers(const DiskTierSlots& tier);
Result<HeaderScan> scan_headers(const DiskTierSlots& tier, std::span<const std::uint32_t> slots);

// Reads each block, decodes it, and returns whether it has this checksum. A block that cannot be
// read counts as whole: it may be readable later.
struct ClaimedBlock {
  std::uint32_t slot = 0;
  std::uint64_t data_bytes = 0;     // at most the layout's block
  std::uint64_t encoded_bytes = 0;  // 0: it lies there as it is
  std::uint64_t data_checksum = 0;
};
Result<std::vector<bool>> are_whole(const DiskTierSlots& tier,
                                    std::span<const ClaimedBlock> blocks);

// Writes each header before its block. Errors: io_error, no_capacity.
Result<> write_headers(const DiskTierSlots& tier, std::span<const SlotHeader> headers);

}  // namespace cairn
