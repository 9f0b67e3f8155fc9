#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cairn {

// Memory that is kept back for the moment when the process gets no more: operator new then takes a
// part of it and goes on, so that what is under way ends as it should instead of in the midst.
// Meanwhile is_short(), and nothing new ought to be begun. One at a time in a process: it sets
// std::new_handler. Thread-safe.
class MemoryReserve {
 public:
  MemoryReserve();
  ~MemoryReserve();
  MemoryReserve(const MemoryReserve&) = delete;
  MemoryReserve& operator=(const MemoryReserve&) = delete;

  bool is_short() const { return short_.load(std::memory_order_relaxed); }
  // Takes back what was given up. True where all of it is there.
  bool refill();
  std::uint64_t shortages() const { return shortages_.load(std::memory_order_relaxed); }

 private:
  // What the requests under way on a server with all its threads busy may still ask for: long
  // answers of a few MiB each. Several parts, so that threads that fail together all get one. Pages
  // that nobody touches are no memory of the machine's.
  static constexpr std::size_t kParts = 16;
  static constexpr std::size_t kPartBytes = 1u << 20;

  bool give_up_a_part();
  static void on_failure();

  std::array<std::atomic<void*>, kParts> parts_{};
  std::atomic<bool> short_{false};
  std::atomic<std::uint64_t> shortages_{0};
};

}  // namespace cairn
