#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/thread.hpp"

namespace cairn {

// Writes whole lines to a descriptor from its own thread, so that a slow reader (a full pipe, a
// terminal stopped by Ctrl-S) never blocks callers. Drops and counts lines that do not fit into the
// queue. Thread-safe.
class LineWriter {
 public:
  // About 800 lines, enough for a reader that pauses briefly.
  static constexpr std::size_t kMaxQueuedBytes = 128 * 1024;
  // How long the destructor waits for a reader.
  static constexpr std::chrono::milliseconds kEndsWithin{2'000};

  // Borrows the descriptor, which must outlive it. Throws std::system_error if no thread can be
  // started. The thread handles no signals.
  explicit LineWriter(int fd);
  // Writes the queued lines first, for at most kEndsWithin.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // Queues a line, which must include its line end. Returns false if it was dropped.
  bool write(std::string line) noexcept;
  // Like write(), but does not count a dropped line.
  bool try_write(std::string line) noexcept;
  // Waits until all lines queued before are written; returns false on timeout.
  bool flush(std::chrono::milliseconds within) noexcept;
  // Counts a line that was dropped before it reached write().
  void count_dropped() noexcept;
  // Lines dropped, including those that the descriptor refused (EPIPE, ENOSPC).
  std::uint64_t dropped() const noexcept;

 private:
  struct Shared;

  // Shared with the thread, which outlives this object if its reader blocks it forever.
  const std::shared_ptr<Shared> shared_;
  Thread thread_;
};

}  // namespace cairn
