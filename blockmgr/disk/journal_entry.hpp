#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/record/block_record.hpp"

namespace cairn {

struct JournalPlace {
  std::uint64_t generation = 0;
  std::uint64_t stamp = 0;
  std::uint64_t history = 0;  // opaque: see EvictionPolicy::kept()
  std::uint32_t slot = 0;
  std::uint32_t encoded_bytes = 0;  // of the block as it lies there; 0: as it is
  std::uint8_t hinted = 0;          // the expected next use: a NextUse
  std::array<std::uint8_t, 7> unused = {};
};
// A slot's entry in a checkpoint or a log. Without a key the slot is free, and the entry names its
// last life. Borrows the texts of its block.
using JournalEntry = PlacedRecord<JournalPlace>;

std::size_t encoded_bytes(const JournalEntry& entry);
// REQUIRES: the size of `out` is encoded_bytes().
void encode(const JournalEntry& entry, std::uint64_t seed, std::span<std::byte> out);

// Reads entries in order, up to the first incomplete one.
class JournalReader {
 public:
  JournalReader(std::span<const std::byte> bytes, std::uint64_t seed)
      : bytes_(bytes), seed_(seed) {}
  std::optional<JournalEntry> next();
  std::size_t read_bytes() const { return at_; }

 private:
  const std::span<const std::byte> bytes_;
  const std::uint64_t seed_;
  std::size_t at_ = 0;
};

}  // namespace cairn
