#include "blockmgr/disk/slot_record.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "base/assert.hpp"
#include "base/hash.hpp"

namespace cairn {
namespace {

// As it lies in a file, little-endian; key, parent and metadata follow, padded to eight bytes.
static_assert(std::endian::native == std::endian::little);
struct RawRecord {
  std::uint64_t checksum;  // of all that follows it
  std::uint32_t size_bytes;
  std::uint32_t slot;
  std::uint64_t generation;
  std::uint64_t stamp;
  std::uint64_t data_checksum;
  std::int64_t expires_at_unix_ms;
  std::uint32_t metadata_size;
  std::uint8_t key_size;
  std::uint8_t parent_size;
  std::uint8_t priority;
  std::uint8_t told;
  std::uint32_t epoch;
  std::uint32_t unused;
  std::uint64_t history;
};
static_assert(sizeof(RawRecord) == 72);

std::string_view text(const std::byte* at, std::size_t size) {
  return {reinterpret_cast<const char*>(at), size};
}

}  // namespace

std::size_t encoded_bytes(const SlotRecordView& record) {
  const std::size_t bytes =
      sizeof(RawRecord) + record.key.size() + record.parent.size() + record.metadata.size();
  return (bytes + 7) / 8 * 8;
}

void encode(const SlotRecordView& record, std::uint64_t seed, std::span<std::byte> out) {
  CAIRN_ASSERT(out.size() == encoded_bytes(record), "the next record would not be found");
  RawRecord raw{};
  raw.size_bytes = static_cast<std::uint32_t>(out.size());
  raw.slot = record.slot;
  raw.generation = record.generation;
  raw.stamp = record.stamp;
  raw.data_checksum = record.data_checksum;
  raw.expires_at_unix_ms = record.expires_at_unix_ms;
  raw.metadata_size = static_cast<std::uint32_t>(record.metadata.size());
  raw.key_size = static_cast<std::uint8_t>(record.key.size());
  raw.parent_size = static_cast<std::uint8_t>(record.parent.size());
  raw.priority = record.priority;
  raw.told = record.told;
  raw.epoch = record.epoch;
  raw.history = record.history;
  std::byte* at = out.data() + sizeof(raw);
  for (const std::string_view part : {record.key, record.parent, record.metadata}) {
    at = std::ranges::copy(std::as_bytes(std::span(part)), at).out;  // an empty one may be null
  }
  std::memset(at, 0, static_cast<std::size_t>(out.data() + out.size() - at));
  std::memcpy(out.data(), &raw, sizeof(raw));
  raw.checksum = hash_bytes(out.subspan(sizeof(raw.checksum)), seed);
  std::memcpy(out.data(), &raw.checksum, sizeof(raw.checksum));
}

std::optional<SlotRecordView> SlotRecordReader::next() {
  const auto left = bytes_.subspan(at_);
  if (left.size() < sizeof(RawRecord)) return std::nullopt;
  RawRecord raw;
  std::memcpy(&raw, left.data(), sizeof(raw));
  const std::size_t parts = std::size_t{raw.key_size} + raw.parent_size + raw.metadata_size;
  if (raw.size_bytes > left.size() || raw.size_bytes < sizeof(raw) + parts ||
      raw.checksum !=
          hash_bytes(left.subspan(sizeof(raw.checksum), raw.size_bytes - sizeof(raw.checksum)),
                     seed_)) {
    return std::nullopt;
  }
  at_ += raw.size_bytes;
  const std::byte* const key = left.data() + sizeof(raw);
  return SlotRecordView{.slot = raw.slot,
                        .generation = raw.generation,
                        .stamp = raw.stamp,
                        .data_checksum = raw.data_checksum,
                        .expires_at_unix_ms = raw.expires_at_unix_ms,
                        .priority = raw.priority,
                        .told = raw.told,
                        .epoch = raw.epoch,
                        .history = raw.history,
                        .key = text(key, raw.key_size),
                        .parent = text(key + raw.key_size, raw.parent_size),
                        .metadata = text(key + raw.key_size + raw.parent_size, raw.metadata_size)};
}

}  // namespace cairn
