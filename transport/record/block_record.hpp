#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

// The encoded description of a block. It is embedded in a slot's header, a disk tier's index, a
// snapshot, a shared store and the messages of a group. Each of them adds its own fields, its
// *place*. They lie within the record, under the same checksum.
//
// Version 3, little-endian and packed:
//   u64 XXH3 of all that follows; u64 bytes of the block; u64 XXH3 of them; u32 epoch;
//   u32 bytes of metadata; u8 version; u8 bytes of the key; u8 bytes of the parent's key;
//   u8 priority; u8 bytes of the expiry (0 or 8); u8 bytes of the place; u8 KV group; u8 zero;
//   place; i64 expiry (Unix ms) if there is one; key; parent's key; metadata
namespace cairn {

inline constexpr std::size_t kMaxKeyBytes = 64;
inline constexpr std::size_t kMaxKvGroups = 16;  // of a cache

// Slot headers used versions 1 and 2 before they embedded a record. Each file that embeds records
// has its own version, so that a file of another release is refused with a reason. Raise both.
inline constexpr std::uint8_t kBlockRecordVersion = 3;

template <class Text>
struct BasicBlockRecord {
  Text key = {};     // empty: no block
  Text parent = {};  // empty: none or unknown
  Text metadata = {};
  std::uint64_t data_bytes = 0;
  std::uint64_t data_checksum = 0;      // XXH3 of the block's bytes
  std::int64_t expires_at_unix_ms = 0;  // 0: never
  std::uint32_t epoch = 1;              // of the metadata
  std::uint8_t priority = 0;
  std::uint8_t kv_group = 0;  // of the key and the parent
};
using BlockRecord = BasicBlockRecord<std::string>;
using BlockRecordView = BasicBlockRecord<std::string_view>;  // borrows its strings

BlockRecordView view_of(const BlockRecord& record);
BlockRecord copy_of(const BlockRecordView& record);

inline constexpr std::size_t kFixedRecordBytes = 40;
// The largest record without metadata and expiry.
constexpr std::size_t max_record_bytes(std::size_t place_bytes) {
  return kFixedRecordBytes + place_bytes + 2 * kMaxKeyBytes;
}
std::size_t encoded_bytes(const BlockRecordView& record, std::size_t place_bytes);

// Writes the record to `out`, followed by zeros. The seed is part of the checksum: a file with a
// random seed rejects records left behind by another file. REQUIRES: `out` has room for
// encoded_bytes(); key and parent have at most kMaxKeyBytes bytes.
template <class Place>
void encode_record(const BlockRecordView& block, const Place& place, std::span<std::byte> out,
                   std::uint64_t seed = 0);

template <class Place>
struct PlacedRecord {
  BlockRecordView block = {};  // borrows the decoded bytes
  Place place = {};
  std::size_t size_bytes = 0;  // size of the encoded record
};
// Decodes the record at the start of the bytes. nullopt unless every byte is intact and it was
// encoded for this kind of place.
template <class Place>
std::optional<PlacedRecord<Place>> decode_record(std::span<const std::byte> bytes,
                                                 std::uint64_t seed = 0);
// Decodes a record that should fill the rest of its room with zeros. nullopt also if other bytes
// follow it.
template <class Place>
std::optional<PlacedRecord<Place>> decode_only_record(std::span<const std::byte> room,
                                                      std::uint64_t seed = 0);

// --- used by the templates

// A place is copied from memory, so it must have no padding.
template <class Place>
inline constexpr bool kIsPlace =
    std::is_trivially_copyable_v<Place>&& std::has_unique_object_representations_v<Place> &&
    sizeof(Place) <= UINT8_MAX;

struct FixedRecordPart {
  std::uint64_t checksum;
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
  std::uint8_t kv_group;
  std::uint8_t zero;

  std::size_t record_bytes() const {
    return sizeof(*this) + place_bytes + expiry_bytes + key_bytes + parent_bytes + metadata_bytes;
  }
  // The checksum alone may also match a record of another version.
  bool is_of(std::size_t place_size) const {
    return version == kBlockRecordVersion && place_bytes == place_size &&
           key_bytes <= kMaxKeyBytes && parent_bytes <= kMaxKeyBytes && kv_group < kMaxKvGroups &&
           (expiry_bytes == 0 || expiry_bytes == sizeof(std::int64_t)) && zero == 0;
  }
};
static_assert(sizeof(FixedRecordPart) == kFixedRecordBytes);

struct RawPlace {
  std::span<const std::byte> bytes;
  std::uint64_t seed = 0;
};
void encode_raw_record(const BlockRecordView& block, const RawPlace& place,
                       std::span<std::byte> out);
std::uint64_t record_checksum(std::span<const std::byte> record, std::uint64_t seed);
bool only_zeros(std::span<const std::byte> bytes);

template <class Place>
void encode_record(const BlockRecordView& block, const Place& place, std::span<std::byte> out,
                   std::uint64_t seed) {
  static_assert(kIsPlace<Place>);
  encode_raw_record(block, {.bytes = std::as_bytes(std::span(&place, 1)), .seed = seed}, out);
}

// Inline, because a server start decodes millions of records.
template <class Place>
std::optional<PlacedRecord<Place>> decode_record(std::span<const std::byte> bytes,
                                                 std::uint64_t seed) {
  static_assert(kIsPlace<Place>);
  FixedRecordPart fixed;
  if (bytes.size() < sizeof(fixed)) return std::nullopt;
  std::memcpy(&fixed, bytes.data(), sizeof(fixed));
  const std::size_t size_bytes = fixed.record_bytes();
  if (size_bytes > bytes.size() || !fixed.is_of(sizeof(Place)) ||
      fixed.checksum != record_checksum(bytes.first(size_bytes), seed)) {
    return std::nullopt;
  }
  const std::byte* const expiry = bytes.data() + sizeof(fixed) + sizeof(Place);
  std::int64_t expires_at_unix_ms = 0;
  if (fixed.expiry_bytes > 0) {
    std::memcpy(&expires_at_unix_ms, expiry, sizeof(expires_at_unix_ms));
    if (expires_at_unix_ms == 0) return std::nullopt;
  }
  const char* const key = reinterpret_cast<const char*>(expiry) + fixed.expiry_bytes;
  const char* const parent = key + fixed.key_bytes;
  std::optional<PlacedRecord<Place>> record(std::in_place);
  std::memcpy(&record->place, bytes.data() + sizeof(fixed), sizeof(Place));
  record->size_bytes = size_bytes;
  record->block = {.key = {key, fixed.key_bytes},
                   .parent = {parent, fixed.parent_bytes},
                   .metadata = {parent + fixed.parent_bytes, fixed.metadata_bytes},
                   .data_bytes = fixed.data_bytes,
                   .data_checksum = fixed.data_checksum,
                   .expires_at_unix_ms = expires_at_unix_ms,
                   .epoch = fixed.epoch,
                   .priority = fixed.priority,
                   .kv_group = fixed.kv_group};
  return record;
}

template <class Place>
std::optional<PlacedRecord<Place>> decode_only_record(std::span<const std::byte> room,
                                                      std::uint64_t seed) {
  auto record = decode_record<Place>(room, seed);
  if (record && !only_zeros(room.subspan(record->size_bytes))) record.reset();
  return record;
}

}  // namespace cairn
