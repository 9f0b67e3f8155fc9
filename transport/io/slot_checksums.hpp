#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>

#include "base/assert.hpp"

namespace cairn {

// The checksum that each slot's bytes must have, while the slot file is in use. Thread-safe. The
// user of a slot must order its own reads and writes.
class SlotChecksums {
 public:
  struct Options {
    std::uint64_t file_id = 0;
    std::uint32_t num_slots = 0;
    std::uint64_t block_bytes = 0;
    // Direct I/O needs addresses, lengths and offsets that are multiples of this; 1: any.
    std::uint32_t memory_alignment = 1;
    // false: checks only the first read of bytes that an earlier run wrote.
    bool check_every_read = true;
  };
  explicit SlotChecksums(Options options) : options_(options) { grow(options.num_slots); }

  // Makes room for more slots. Call from one thread at a time, and publish the new slots to other
  // threads afterwards. Throws std::bad_alloc and then changes nothing.
  void grow(std::uint32_t num_slots) {
    for (std::size_t i = 0; first_of(i) < num_slots; ++i) {
      Segment& segment = segments_[i];
      if (segment.proved) continue;
      segment.checksums = std::make_unique<std::atomic<std::uint64_t>[]>(size_of(i));
      segment.proved = std::make_unique<std::atomic<bool>[]>(size_of(i));
    }
    if (num_slots > num_slots_) num_slots_ = num_slots;
  }

  std::uint64_t file_id() const { return options_.file_id; }
  std::uint64_t block_bytes() const { return options_.block_bytes; }
  std::uint32_t num_slots() const { return num_slots_; }
  std::uint32_t memory_alignment() const { return options_.memory_alignment; }

  std::uint64_t checksum(std::uint32_t slot) const {
    return state(slot).load(std::memory_order_relaxed);
  }
  // The slot has bytes that this run wrote.
  void set_written(std::uint32_t slot, std::uint64_t checksum) {
    state(slot).store(checksum, std::memory_order_relaxed);
    set_proved(slot);
  }
  // The slot should have bytes that an earlier run wrote.
  void set_recovered(std::uint32_t slot, std::uint64_t checksum) {
    state(slot).store(checksum, std::memory_order_relaxed);
    proved(slot).store(false, std::memory_order_relaxed);
  }
  bool wants_check(std::uint32_t slot) const {
    return options_.check_every_read || !proved(slot).load(std::memory_order_relaxed);
  }
  void set_proved(std::uint32_t slot) { proved(slot).store(true, std::memory_order_relaxed); }

 private:
  // Each segment is as long as all before it together, so no slot moves when the file grows.
  static constexpr std::uint32_t kFirstSegment = 64;
  static constexpr std::size_t kMaxSegments = 27;  // enough for 32-bit slot numbers
  static std::size_t segment_of(std::uint32_t slot) {
    return static_cast<std::size_t>(std::bit_width(slot / kFirstSegment));
  }
  static std::uint64_t first_of(std::size_t segment) {
    return segment == 0 ? 0 : std::uint64_t{kFirstSegment} << (segment - 1);
  }
  static std::uint64_t size_of(std::size_t segment) {
    return segment == 0 ? kFirstSegment : first_of(segment);
  }
  struct Segment {
    std::unique_ptr<std::atomic<std::uint64_t>[]> checksums;
    std::unique_ptr<std::atomic<bool>[]> proved;
  };

  std::atomic<std::uint64_t>& state(std::uint32_t slot) const {
    CAIRN_ASSERT(slot < num_slots_, "another slot's checksum would be taken");
    const std::size_t segment = segment_of(slot);
    return segments_[segment].checksums[slot - first_of(segment)];
  }
  std::atomic<bool>& proved(std::uint32_t slot) const {
    const std::size_t segment = segment_of(slot);
    return segments_[segment].proved[slot - first_of(segment)];
  }
  const Options options_;
  std::array<Segment, kMaxSegments> segments_;
  std::atomic<std::uint32_t> num_slots_{0};
};

}  // namespace cairn
