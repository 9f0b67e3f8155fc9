#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "transport/io/slot_header.hpp"

namespace cairn {

// What a checkpoint and the log behind it say of a slot. Views, into what was read.
struct SlotRecordView {
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
  std::uint64_t stamp = 0;
  std::uint64_t data_checksum = 0;
  std::int64_t expires_at_unix_ms = 0;  // 0: never
  std::uint8_t priority = 0;
  std::uint8_t told = 0;  // what is expected of its next use: a NextUse
  std::uint32_t epoch = 0;
  std::uint64_t history = 0;  // the order of eviction's own: see EvictionPolicy::kept()
  std::string_view key = {};  // empty: nobody's, and this was its last life that ended
  std::string_view parent = {};
  std::string_view metadata = {};
};

std::size_t encoded_bytes(const SlotRecordView& record);
// Fills `out`, which has that size. Records carry a checksum that is also of `seed`, so that what
// another file left behind is never taken for one.
void encode(const SlotRecordView& record, std::uint64_t seed, std::span<std::byte> out);

// Reads records one after another, up to the first that is not whole.
class SlotRecordReader {
 public:
  SlotRecordReader(std::span<const std::byte> bytes, std::uint64_t seed)
      : bytes_(bytes), seed_(seed) {}
  std::optional<SlotRecordView> next();
  std::size_t read_bytes() const { return at_; }

 private:
  const std::span<const std::byte> bytes_;
  const std::uint64_t seed_;
  std::size_t at_ = 0;
};

}  // namespace cairn
