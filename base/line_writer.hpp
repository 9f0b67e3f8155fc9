#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/thread.hpp"

namespace cairn {

// Writes whole lines to a descriptor from a thread of its own, so that a reader who stands still (a
// full pipe, a terminal held by Ctrl-S) never holds up who has something to say. What the queue has
// no room for is dropped and counted. Thread-safe.
class LineWriter {
 public:
  // Some 800 lines, for a reader who takes a breath.
  static constexpr std::size_t kMaxQueuedBytes = 128 * 1024;
  // How long the end waits for a reader.
  static constexpr std::chrono::milliseconds kEndsWithin{2'000};

  // Borrows the descriptor, which must outlive it. Throws std::system_error where there is no
  // thread to be had. The thread takes no signals.
  explicit LineWriter(int fd);
  // What is queued is written first, if the reader takes it within kEndsWithin.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // Takes a line with its line end. False where it was dropped.
  bool write(std::string line) noexcept;
  // The same, but a line that has no room is not counted.
  bool try_write(std::string line) noexcept;
  // Waits until all is written that was taken before; false where that takes longer.
  bool flush(std::chrono::milliseconds within) noexcept;
  // Of a line that did not come so far.
  void count_dropped() noexcept;
  // Lines that were not taken, and those that the descriptor refused (EPIPE, ENOSPC).
  std::uint64_t dropped() const noexcept;

 private:
  struct Shared;

  // The thread's too: one that waits for a reader for ever outlives this.
  const std::shared_ptr<Shared> shared_;
  Thread thread_;
};

}  // namespace cairn
