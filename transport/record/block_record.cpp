#include "transport/record/block_record.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/assert.hpp"
#include "base/hash.hpp"

namespace cairn {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie");

constexpr std::uint8_t kExpiryBytes = sizeof(std::int64_t);

template <class To, class From>
BasicBlockRecord<To> converted(const BasicBlockRecord<From>& record) {
  return {.key = To(record.key),
          .parent = To(record.parent),
          .metadata = To(record.metadata),
          .data_bytes = record.data_bytes,
          .data_checksum = record.data_checksum,
          .expires_at_unix_ms = record.expires_at_unix_ms,
          .epoch = record.epoch,
          .priority = record.priority,
          .kv_group = record.kv_group};
}

}  // namespace

BlockRecordView view_of(const BlockRecord& record) { return converted<std::string_view>(record); }
BlockRecord copy_of(const BlockRecordView& record) { return converted<std::string>(record); }

std::size_t encoded_bytes(const BlockRecordView& record, std::size_t place_bytes) {
  return sizeof(FixedRecordPart) + place_bytes +
         (record.expires_at_unix_ms != 0 ? kExpiryBytes : std::size_t{0}) + record.key.size() +
         record.parent.size() + record.metadata.size();
}

void encode_raw_record(const BlockRecordView& record, const RawPlace& place,
                       std::span<std::byte> out) {
  CAIRN_ASSERT(record.key.size() <= kMaxKeyBytes && record.parent.size() <= kMaxKeyBytes,
               "a key would be cut");
  const std::size_t size_bytes = encoded_bytes(record, place.bytes.size());
  CAIRN_ASSERT(size_bytes <= out.size(), "a record would be cut");
  FixedRecordPart fixed{
      .checksum = 0,
      .data_bytes = record.data_bytes,
      .data_checksum = record.data_checksum,
      .epoch = record.epoch,
      .metadata_bytes = static_cast<std::uint32_t>(record.metadata.size()),
      .version = kBlockRecordVersion,
      .key_bytes = static_cast<std::uint8_t>(record.key.size()),
      .parent_bytes = static_cast<std::uint8_t>(record.parent.size()),
      .priority = record.priority,
      .expiry_bytes = record.expires_at_unix_ms != 0 ? kExpiryBytes : std::uint8_t{0},
      .place_bytes = static_cast<std::uint8_t>(place.bytes.size()),
      .kv_group = record.kv_group,
      .zero = 0};
  const auto expiry = std::as_bytes(std::span(&record.expires_at_unix_ms, 1));
  std::byte* at = out.data() + sizeof(fixed);
  at = std::ranges::copy(place.bytes, at).out;
  at = std::ranges::copy(expiry.first(fixed.expiry_bytes), at).out;
  for (const std::string_view part : {record.key, record.parent, record.metadata}) {
    at = std::ranges::copy(std::as_bytes(std::span(part)), at).out;  // an empty part may be null
  }
  std::fill(at, out.data() + out.size(), std::byte{0});
  std::memcpy(out.data(), &fixed, sizeof(fixed));
  fixed.checksum = record_checksum(out.first(size_bytes), place.seed);
  std::memcpy(out.data(), &fixed.checksum, sizeof(fixed.checksum));
}

std::uint64_t record_checksum(std::span<const std::byte> record, std::uint64_t seed) {
  return hash_bytes(record.subspan(sizeof(FixedRecordPart::checksum)), seed);
}

bool only_zeros(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace cairn
