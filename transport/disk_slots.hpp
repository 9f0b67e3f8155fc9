#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/assert.hpp"

namespace cairn {

// What is known of a slot file's slots while it is in use: the checksum that each slot's bytes must
// have. Thread-safe; a slot's own user orders its writes and reads.
class DiskSlots {
 public:
  struct Options {
    std::uint64_t file_id = 0;
    std::uint32_t num_slots = 0;
    // Direct I/O takes only addresses, lengths and offsets that are multiples of it; 1: any.
    std::uint32_t memory_alignment = 1;
    // false: only the first read of what an earlier run wrote is checked.
    bool check_every_read = true;
  };
  explicit DiskSlots(Options options)
      : options_(options),
        states_(std::make_unique<std::atomic<std::uint64_t>[]>(options.num_slots)),
        proved_(std::make_unique<std::atomic<bool>[]>(options.num_slots)) {}

  std::uint64_t file_id() const { return options_.file_id; }
  std::uint32_t num_slots() const { return options_.num_slots; }
  std::uint32_t memory_alignment() const { return options_.memory_alignment; }

  std::uint64_t checksum(std::uint32_t slot) const {
    return state(slot).load(std::memory_order_relaxed);
  }
  // Of bytes that this run wrote.
  void set_written(std::uint32_t slot, std::uint64_t checksum) {
    state(slot).store(checksum, std::memory_order_relaxed);
    proved_[slot].store(true, std::memory_order_relaxed);
  }
  // Of bytes that an earlier run wrote, as far as is known.
  void set_recovered(std::uint32_t slot, std::uint64_t checksum) {
    state(slot).store(checksum, std::memory_order_relaxed);
    proved_[slot].store(false, std::memory_order_relaxed);
  }
  bool wants_check(std::uint32_t slot) const {
    return options_.check_every_read || !proved_[slot].load(std::memory_order_relaxed);
  }
  void set_proved(std::uint32_t slot) { proved_[slot].store(true, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t>& state(std::uint32_t slot) const {
    CAIRN_ASSERT(slot < options_.num_slots, "another slot's checksum would be taken");
    return states_[slot];
  }
  const Options options_;
  const std::unique_ptr<std::atomic<std::uint64_t>[]> states_;
  const std::unique_ptr<std::atomic<bool>[]> proved_;
};

}  // namespace cairn
