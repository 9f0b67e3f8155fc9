#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cairn {

// Memory reserved for when the process runs out: operator new then takes a part of it, so that work
// in progress can finish. While is_short(), start nothing new. At most one per process, because it
// sets std::new_handler. Thread-safe.
class MemoryReserve {
 public:
  MemoryReserve();
  ~MemoryReserve();
  MemoryReserve(const MemoryReserve&) = delete;
  MemoryReserve& operator=(const MemoryReserve&) = delete;

  bool is_short() const { return short_.load(std::memory_order_relaxed); }
  // Takes back the parts given up. Returns true if all are back.
  bool refill();
  std::uint64_t shortages() const { return shortages_.load(std::memory_order_relaxed); }

 private:
  // Enough for requests in progress on a server with all threads busy: long answers of a few MiB
  // each. Several parts, so that threads that fail together each get one. Untouched pages use no
  // physical memory.
  static constexpr std::size_t kParts = 16;
  static constexpr std::size_t kPartBytes = 1u << 20;

  bool give_up_a_part();
  static void on_failure();

  std::array<std::atomic<void*>, kParts> parts_{};
  std::atomic<bool> short_{false};
  std::atomic<std::uint64_t> shortages_{0};
};

}  // namespace cairn
