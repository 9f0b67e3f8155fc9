#include "transport/io/slot_header.hpp"

#include <algorithm>
#include <string_view>

namespace cairn {
namespace {

constexpr std::string_view kMagic = "CAIRNSLT";
constexpr std::size_t kRoomBytes = kSlotHeaderBytes - kMagic.size();

}  // namespace

void encode_slot_header(const SlotHeader& header, std::span<std::byte, kSlotHeaderBytes> page) {
  BlockRecordView block = view_of(header.block);
  if (encoded_bytes(block, sizeof(SlotPlace)) > kRoomBytes) block.metadata = {};
  std::ranges::copy(std::as_bytes(std::span(kMagic)), page.begin());
  encode_record(block, header.place, page.subspan(kMagic.size()));
}

std::optional<SlotHeader> decode_slot_header(std::span<const std::byte, kSlotHeaderBytes> page) {
  if (!std::ranges::equal(page.first(kMagic.size()), std::as_bytes(std::span(kMagic)))) {
    return std::nullopt;
  }
  const auto record = decode_only_record<SlotPlace>(page.subspan(kMagic.size()));
  if (!record) return std::nullopt;
  return SlotHeader{.block = copy_of(record->block), .place = record->place};
}

}  // namespace cairn
