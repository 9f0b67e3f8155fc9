#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>

#include "base/assert.hpp"

namespace cairn {

inline constexpr std::uint64_t kDiskPageBytes = 4096;
// The pages of a slot whose block takes `stored_bytes` there, with the header's.
constexpr std::uint64_t pages_of_block(std::uint64_t stored_bytes) {
  return 1 + (stored_bytes + kDiskPageBytes - 1) / kDiskPageBytes;
}

// What lies in each slot of a slot file that is in use: the checksum that the block's bytes must
// have, in which form they lie there, and how many pages of the file they take. Thread-safe. The
// user of a slot must order its own reads and writes.
class SlotContents {
 public:
  struct Options {
    std::uint64_t file_id = 0;
    std::uint32_t num_slots = 0;
    std::uint64_t block_bytes = 0;
    // A slot has a header, and a larger block covers the slots after its own.
    std::uint64_t slot_bytes = 0;
    // Direct I/O needs addresses, lengths and offsets that are multiples of this; 1: any.
    std::uint32_t memory_alignment = 1;
    // false: checks only the first read of bytes that an earlier run wrote.
    bool check_every_read = true;
    // The file has pages only where something was written: see note_pages().
    bool sparse = false;
  };
  // How a block lies in its slot.
  struct Written {
    std::uint64_t checksum = 0;       // of the plain bytes
    std::uint32_t encoded_bytes = 0;  // 0: it lies there as it is
  };

  explicit SlotContents(Options options) : options_(options) { grow(options.num_slots); }

  // Makes room for more slots. Call from one thread at a time, and publish the new slots to other
  // threads afterwards. Throws std::bad_alloc and then changes nothing.
  void grow(std::uint32_t num_slots) {
    for (std::size_t i = 0; first_of(i) < num_slots; ++i) {
      Segment& segment = segments_[i];
      if (segment.proved) continue;
      segment.slots = std::make_unique<Slot[]>(size_of(i));
      segment.proved = std::make_unique<std::atomic<bool>[]>(size_of(i));
    }
    if (num_slots > num_slots_) num_slots_ = num_slots;
  }

  std::uint64_t file_id() const { return options_.file_id; }
  std::uint64_t block_bytes() const { return options_.block_bytes; }
  std::uint32_t num_slots() const { return num_slots_; }
  std::uint32_t memory_alignment() const { return options_.memory_alignment; }
  bool is_sparse() const { return options_.sparse; }

  std::uint64_t checksum(std::uint32_t slot) const {
    return at(slot).checksum.load(std::memory_order_relaxed);
  }
  std::uint32_t encoded_bytes(std::uint32_t slot) const {
    return at(slot).encoded_bytes.load(std::memory_order_relaxed);
  }
  // The slot has bytes that this run wrote.
  void set_written(std::uint32_t slot, Written written) {
    set(slot, written);
    set_proved(slot);
  }
  // The slot should have bytes that an earlier run wrote.
  void set_recovered(std::uint32_t slot, Written written) {
    set(slot, written);
    proved(slot).store(false, std::memory_order_relaxed);
  }
  bool wants_check(std::uint32_t slot) const {
    return options_.check_every_read || !proved(slot).load(std::memory_order_relaxed);
  }
  void set_proved(std::uint32_t slot) { proved(slot).store(true, std::memory_order_relaxed); }

  // --- pages of a sparse file, with the header's

  std::uint32_t slot_pages() const {
    return static_cast<std::uint32_t>(options_.slot_bytes / kDiskPageBytes);
  }
  // The pages that the file has for `slots` slots from this one on.
  std::uint64_t pages(std::uint32_t slot, std::uint32_t slots = 1) const {
    std::uint64_t pages = 0;
    for (std::uint32_t i = 0; i < slots; ++i) {
      pages += at(slot + i).pages.load(std::memory_order_relaxed);
    }
    return pages;
  }
  // The pages of a block that was written. Those beyond it stay.
  void add_pages(std::uint32_t slot, std::uint64_t pages) {
    for (; pages > 0 && slot < num_slots_; ++slot) {
      const std::uint64_t here = std::min<std::uint64_t>(pages, slot_pages());
      auto& there = at(slot).pages;
      const std::uint32_t had = there.load(std::memory_order_relaxed);
      there.store(std::max(had, static_cast<std::uint32_t>(here)), std::memory_order_relaxed);
      pages -= here;
    }
  }
  // The pages that these slots have now: the rest went back to the file system.
  void set_pages(std::uint32_t slot, std::uint32_t slots, std::uint64_t pages) {
    for (std::uint32_t i = 0; i < slots; ++i) {
      const std::uint64_t here = std::min<std::uint64_t>(pages, slot_pages());
      at(slot + i).pages.store(static_cast<std::uint32_t>(here), std::memory_order_relaxed);
      pages -= here;
    }
  }

 private:
  struct Slot {
    std::atomic<std::uint64_t> checksum{0};
    std::atomic<std::uint32_t> encoded_bytes{0};
    std::atomic<std::uint32_t> pages{0};
  };
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
    std::unique_ptr<Slot[]> slots;
    std::unique_ptr<std::atomic<bool>[]> proved;
  };

  void set(std::uint32_t slot, Written written) {
    at(slot).checksum.store(written.checksum, std::memory_order_relaxed);
    at(slot).encoded_bytes.store(written.encoded_bytes, std::memory_order_relaxed);
  }
  Slot& at(std::uint32_t slot) const {
    CAIRN_ASSERT(slot < num_slots_, "another slot's bytes would be taken");
    const std::size_t segment = segment_of(slot);
    return segments_[segment].slots[slot - first_of(segment)];
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
