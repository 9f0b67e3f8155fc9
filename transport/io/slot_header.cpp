#include "transport/io/slot_header.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/assert.hpp"
#include "base/hash.hpp"

namespace cairn {
namespace {

constexpr std::array<char, 8> kHeaderMagic = {'C', 'A', 'I', 'R', 'N', 'S', 'L', 'T'};
constexpr std::uint32_t kHeaderVersion = 2;
constexpr std::size_t kMaxNameBytes = 64;  // of a key

// As it lies on disk, little-endian.
static_assert(std::endian::native == std::endian::little);
struct Fixed {
  std::array<char, 8> magic;
  std::uint64_t header_checksum;  // of all that follows it, to the page's end
  std::uint32_t version;
  std::uint8_t key_size;
  std::uint8_t parent_size;
  std::uint16_t metadata_size;
  std::uint64_t file_id;
  std::uint64_t slot;
  std::uint64_t generation;
  std::uint64_t stamp;
  std::int64_t expires_at_unix_ms;
  std::uint64_t data_bytes;
  std::uint64_t data_checksum;
  std::uint8_t priority;
  std::array<std::uint8_t, 3> unused;
  std::uint32_t epoch;
  std::array<std::byte, kMaxNameBytes> key;
  std::array<std::byte, kMaxNameBytes> parent;
};
static_assert(sizeof(Fixed) == 216);
constexpr std::size_t kMaxMetadataBytes = kSlotHeaderBytes - sizeof(Fixed);
constexpr std::size_t kSummedFrom = sizeof(Fixed::magic) + sizeof(Fixed::header_checksum);

std::uint64_t checksum_of(std::span<const std::byte, kSlotHeaderBytes> page) {
  return hash_bytes(page.subspan(kSummedFrom), 0);
}

std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

void encode_slot_header(const SlotHeader& header, std::span<std::byte, kSlotHeaderBytes> page) {
  const BlockHeader& block = header.block;
  CAIRN_ASSERT(block.key.size() <= kMaxNameBytes && block.parent.size() <= kMaxNameBytes,
               "a key would be cut");
  Fixed fixed{};
  fixed.magic = kHeaderMagic;
  fixed.version = kHeaderVersion;
  fixed.key_size = static_cast<std::uint8_t>(block.key.size());
  fixed.parent_size = static_cast<std::uint8_t>(block.parent.size());
  const bool metadata_fits = block.metadata.size() <= kMaxMetadataBytes;
  fixed.metadata_size =
      metadata_fits ? static_cast<std::uint16_t>(block.metadata.size()) : std::uint16_t{0};
  fixed.file_id = header.file_id;
  fixed.slot = header.slot;
  fixed.generation = block.generation;
  fixed.stamp = block.stamp;
  fixed.expires_at_unix_ms = block.expires_at_unix_ms;
  fixed.data_bytes = header.data_bytes;
  fixed.data_checksum = header.data_checksum;
  fixed.priority = block.priority;
  fixed.epoch = block.epoch;
  std::memcpy(fixed.key.data(), block.key.data(), block.key.size());
  std::memcpy(fixed.parent.data(), block.parent.data(), block.parent.size());
  std::memset(page.data(), 0, page.size());
  std::memcpy(page.data(), &fixed, sizeof(fixed));
  std::memcpy(page.data() + sizeof(fixed), block.metadata.data(), fixed.metadata_size);
  fixed.header_checksum = checksum_of(page);
  std::memcpy(page.data(), &fixed, sizeof(fixed));
}

std::optional<SlotHeader> decode_slot_header(std::span<const std::byte, kSlotHeaderBytes> page) {
  Fixed fixed;
  std::memcpy(&fixed, page.data(), sizeof(fixed));
  if (fixed.magic != kHeaderMagic || fixed.version != kHeaderVersion ||
      fixed.header_checksum != checksum_of(page)) {
    return std::nullopt;
  }
  // What has the right checksum was written by encode_slot_header; this is for a later version's
  // mistakes.
  if (fixed.key_size > kMaxNameBytes || fixed.parent_size > kMaxNameBytes ||
      fixed.metadata_size > kMaxMetadataBytes) {
    return std::nullopt;
  }
  SlotHeader header;
  header.file_id = fixed.file_id;
  header.slot = fixed.slot;
  header.data_bytes = fixed.data_bytes;
  header.data_checksum = fixed.data_checksum;
  header.block.key = text(std::span(fixed.key).first(fixed.key_size));
  header.block.parent = text(std::span(fixed.parent).first(fixed.parent_size));
  header.block.metadata = text(page.subspan(sizeof(fixed), fixed.metadata_size));
  header.block.generation = fixed.generation;
  header.block.stamp = fixed.stamp;
  header.block.expires_at_unix_ms = fixed.expires_at_unix_ms;
  header.block.priority = fixed.priority;
  header.block.epoch = fixed.epoch;
  return header;
}

}  // namespace cairn
