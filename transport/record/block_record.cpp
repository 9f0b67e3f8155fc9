#include "transport/record/block_record.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/assert.hpp"
#include "base/hash.hpp"

namespace cairn {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie");

struct FixedPart {
  std::uint64_t checksum;  // of all that follows it
  std::uint64_t data_bytes;
  std::uint64_t data_checksum;
  std::uint32_t epoch;
  std::uint32_t metadata_bytes;
  std::uint8_t version;
  std::uint8_t key_bytes;
  std::uint8_t parent_bytes;
  std::uint8_t priority;
  std::uint8_t expiry_bytes;
  std::uint8_t place_bytes;
  std::uint16_t zero;

  std::size_t record_bytes() const {
    return sizeof(FixedPart) + place_bytes + expiry_bytes + key_bytes + parent_bytes +
           metadata_bytes;
  }
  // Bytes with the right checksum come from encode_record(), but perhaps of another version.
  bool is_ours() const {
    return version == kBlockRecordVersion && key_bytes <= kMaxKeyBytes &&
           parent_bytes <= kMaxKeyBytes && (expiry_bytes == 0 || expiry_bytes == kExpiryBytes) &&
           zero == 0;
  }
  static constexpr std::uint8_t kExpiryBytes = sizeof(std::int64_t);
};
static_assert(sizeof(FixedPart) == kFixedRecordBytes);

std::uint64_t checksum_of(std::span<const std::byte> record, std::uint64_t seed) {
  return hash_bytes(record.subspan(sizeof(FixedPart::checksum)), seed);
}

std::string_view text(const std::byte* at, std::size_t size) {
  return {reinterpret_cast<const char*>(at), size};
}

template <class To, class From>
BasicBlockRecord<To> converted(const BasicBlockRecord<From>& record) {
  return {.key = To(record.key),
          .parent = To(record.parent),
          .metadata = To(record.metadata),
          .data_bytes = record.data_bytes,
          .data_checksum = record.data_checksum,
          .expires_at_unix_ms = record.expires_at_unix_ms,
          .epoch = record.epoch,
          .priority = record.priority};
}

}  // namespace

BlockRecordView view_of(const BlockRecord& record) { return converted<std::string_view>(record); }
BlockRecord copy_of(const BlockRecordView& record) { return converted<std::string>(record); }

std::size_t encoded_bytes(const BlockRecordView& record, std::size_t place_bytes) {
  return sizeof(FixedPart) + place_bytes +
         (record.expires_at_unix_ms != 0 ? FixedPart::kExpiryBytes : std::size_t{0}) +
         record.key.size() + record.parent.size() + record.metadata.size();
}

void encode_raw_record(const BlockRecordView& record, const RawPlace& place,
                       std::span<std::byte> out) {
  CAIRN_ASSERT(record.key.size() <= kMaxKeyBytes && record.parent.size() <= kMaxKeyBytes,
               "a key would be cut");
  const std::size_t size_bytes = encoded_bytes(record, place.bytes.size());
  CAIRN_ASSERT(size_bytes <= out.size(), "a record would be cut");
  FixedPart fixed{
      .checksum = 0,
      .data_bytes = record.data_bytes,
      .data_checksum = record.data_checksum,
      .epoch = record.epoch,
      .metadata_bytes = static_cast<std::uint32_t>(record.metadata.size()),
      .version = kBlockRecordVersion,
      .key_bytes = static_cast<std::uint8_t>(record.key.size()),
      .parent_bytes = static_cast<std::uint8_t>(record.parent.size()),
      .priority = record.priority,
      .expiry_bytes = record.expires_at_unix_ms != 0 ? FixedPart::kExpiryBytes : std::uint8_t{0},
      .place_bytes = static_cast<std::uint8_t>(place.bytes.size()),
      .zero = 0};
  const auto expiry = std::as_bytes(std::span(&record.expires_at_unix_ms, 1));
  std::byte* at = out.data() + sizeof(fixed);
  at = std::ranges::copy(place.bytes, at).out;
  at = std::ranges::copy(expiry.first(fixed.expiry_bytes), at).out;
  for (const std::string_view part : {record.key, record.parent, record.metadata}) {
    at = std::ranges::copy(std::as_bytes(std::span(part)), at).out;  // an empty one may be null
  }
  std::fill(at, out.data() + out.size(), std::byte{0});
  std::memcpy(out.data(), &fixed, sizeof(fixed));
  fixed.checksum = checksum_of(out.first(size_bytes), place.seed);
  std::memcpy(out.data(), &fixed.checksum, sizeof(fixed.checksum));
}

std::optional<RawBlockRecord> decode_raw_record(std::span<const std::byte> bytes,
                                                std::uint64_t seed) {
  if (bytes.size() < sizeof(FixedPart)) return std::nullopt;
  FixedPart fixed;
  std::memcpy(&fixed, bytes.data(), sizeof(fixed));
  const std::size_t size_bytes = fixed.record_bytes();
  if (size_bytes > bytes.size() || !fixed.is_ours() ||
      fixed.checksum != checksum_of(bytes.first(size_bytes), seed)) {
    return std::nullopt;
  }
  const std::byte* const place = bytes.data() + sizeof(fixed);
  const std::byte* const expiry = place + fixed.place_bytes;
  const std::byte* const key = expiry + fixed.expiry_bytes;
  const std::byte* const parent = key + fixed.key_bytes;
  RawBlockRecord record{
      .block = {.key = text(key, fixed.key_bytes),
                .parent = text(parent, fixed.parent_bytes),
                .metadata = text(parent + fixed.parent_bytes, fixed.metadata_bytes),
                .data_bytes = fixed.data_bytes,
                .data_checksum = fixed.data_checksum,
                .epoch = fixed.epoch,
                .priority = fixed.priority},
      .place = {place, fixed.place_bytes},
      .size_bytes = size_bytes};
  if (fixed.expiry_bytes > 0) {
    std::memcpy(&record.block.expires_at_unix_ms, expiry, sizeof(record.block.expires_at_unix_ms));
    if (record.block.expires_at_unix_ms == 0) return std::nullopt;
  }
  return record;
}

bool only_zeros(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace cairn
