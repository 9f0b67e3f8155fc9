#include "transport/io/header_scan.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/checked.hpp"
#include "base/pieces.hpp"

namespace cairn {
namespace {

// Calls in progress. Headers are scattered pages, and a disk reads many as fast as one.
constexpr std::size_t kCallsAtOnce = 8;
// Headers per call: 1 MiB of memory.
constexpr std::size_t kHeadersACall = 256;

std::uint64_t header_offset(const RegionView& file, const PieceLocation& block) {
  return file.file_offset_bytes() + block.offset_bytes - kSlotHeaderBytes;
}

// Reads the headers of these slots into `memory`, with one call per file and group.
Result<> read_headers(const DiskTierSlots& tier, std::span<const std::uint32_t> slots,
                      std::byte* memory) {
  const auto regions = tier.layout.regions();
  std::vector<DiskCall> calls;
  for (std::size_t first = 0; first < slots.size(); first += kHeadersACall) {
    const std::size_t end = std::min(first + kHeadersACall, slots.size());
    std::vector<DiskCall> by_file(regions.size());
    for (std::size_t n = first; n < end; ++n) {
      const PieceLocation at = tier.layout.geometry().locate({.block = slots[n]});
      by_file[at.region].fd = regions[at.region].fd();
      by_file[at.region].runs.push_back(
          {memory + n * kSlotHeaderBytes, header_offset(regions[at.region], at), kSlotHeaderBytes});
    }
    for (DiskCall& call : by_file) {
      if (!call.runs.empty()) calls.push_back(std::move(call));
    }
  }
  for (Result<>& read : tier.disk.run_all(std::move(calls))) CAIRN_TRY(std::move(read));
  return {};
}

void keep(const DiskTierSlots& tier, std::uint32_t slot,
          std::span<const std::byte, kSlotHeaderBytes> page, HeaderScan& found) {
  if (only_zeros(page)) return;
  auto header = decode_slot_header(page);
  const bool ours =
      header && header->place.file_id == tier.slots.file_id() && header->place.slot == slot &&
      header->block.data_bytes <= tier.layout.geometry().block_bytes() &&
      (header->place.encoded_bytes == 0 || header->place.encoded_bytes < header->block.data_bytes);
  if (!ours) {
    ++found.torn;
  } else if (!header->block.key.empty()) {
    found.headers.push_back(std::move(*header));
  }
}

}  // namespace

Result<HeaderScan> scan_headers(const DiskTierSlots& tier) {
  std::vector<std::uint32_t> all(tier.slots.num_slots());
  std::iota(all.begin(), all.end(), 0u);
  return scan_headers(tier, all);
}

Result<HeaderScan> scan_headers(const DiskTierSlots& tier, std::span<const std::uint32_t> slots) {
  constexpr std::size_t kHeadersAtOnce = kCallsAtOnce * kHeadersACall;
  auto memory = Region::system(kHeadersAtOnce * kSlotHeaderBytes);
  if (!memory) return std::move(memory).error();
  HeaderScan found;
  for (std::size_t first = 0; first < slots.size(); first += kHeadersAtOnce) {
    const auto batch = slots.subspan(first, std::min(kHeadersAtOnce, slots.size() - first));
    CAIRN_TRY(read_headers(tier, batch, memory->data()));
    for (std::size_t n = 0; n < batch.size(); ++n) {
      keep(tier, batch[n],
           std::span<const std::byte, kSlotHeaderBytes>(memory->data() + n * kSlotHeaderBytes,
                                                        kSlotHeaderBytes),
           found);
    }
  }
  std::ranges::sort(found.headers, {}, [](const SlotHeader& header) { return header.place.slot; });
  return found;
}

Result<std::vector<bool>> are_whole(const DiskTierSlots& tier,
                                    std::span<const ClaimedBlock> blocks) {
  const std::uint64_t block_bytes = tier.layout.geometry().block_bytes();
  const auto stored_bytes = [&](const ClaimedBlock& block) {
    return std::min(block.encoded_bytes > 0 ? block.encoded_bytes : block.data_bytes, block_bytes);
  };
  const auto is_whole = [&](const ClaimedBlock& block, std::byte* bytes) {
    const iovec plain{bytes, std::min(block.data_bytes, block_bytes)};
    if (block.encoded_bytes > 0 && !tier.codec.decode_in_place(block.encoded_bytes, {&plain, 1})) {
      return false;
    }
    return checksum_of({&plain, 1}) == block.data_checksum;
  };
  // A block is contiguous on disk. Direct I/O reads whole pages.
  const std::uint64_t size_bytes = checked_align_up(block_bytes, kSlotHeaderBytes).value();
  auto memory = Region::system(kCallsAtOnce * size_bytes);
  if (!memory) return std::move(memory).error();
  std::vector<bool> whole;
  for (std::size_t first = 0; first < blocks.size(); first += kCallsAtOnce) {
    const auto batch = blocks.subspan(first, std::min(kCallsAtOnce, blocks.size() - first));
    std::vector<DiskCall> calls;
    for (std::size_t n = 0; n < batch.size(); ++n) {
      const PieceLocation at = tier.layout.geometry().locate({.block = batch[n].slot});
      const RegionView& file = tier.layout.regions()[at.region];
      const DiskRun run{memory->data() + n * size_bytes, file.file_offset_bytes() + at.offset_bytes,
                        checked_align_up(stored_bytes(batch[n]), kSlotHeaderBytes).value()};
      calls.push_back({DiskCall::Kind::read, file.fd(), {run}});
    }
    const auto read = tier.disk.run_all(std::move(calls));
    for (std::size_t n = 0; n < batch.size(); ++n) {
      // A block that cannot be read may be readable later. Calling it damaged could bring back an
      // older, wrong block.
      whole.push_back(!read[n] || is_whole(batch[n], memory->data() + n * size_bytes));
    }
  }
  return whole;
}

Result<> write_headers(const DiskTierSlots& tier, std::span<const SlotHeader> headers) {
  auto memory = Region::system(kSlotHeaderBytes);
  if (!memory) return std::move(memory).error();
  for (const SlotHeader& header : headers) {
    encode_slot_header(header,
                       std::span<std::byte, kSlotHeaderBytes>(memory->data(), kSlotHeaderBytes));
    const PieceLocation at =
        tier.layout.geometry().locate({.block = static_cast<std::uint32_t>(header.place.slot)});
    const RegionView& file = tier.layout.regions()[at.region];
    const DiskRun run{memory->data(), header_offset(file, at), kSlotHeaderBytes};
    CAIRN_TRY(tier.disk.write(file.fd(), {&run, 1}));
  }
  return {};
}

}  // namespace cairn
