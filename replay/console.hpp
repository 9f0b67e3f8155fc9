#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.hpp"

namespace cairn::replay {

struct Progress {
  double fraction = 0;  // of the workload
  std::uint64_t requests = 0;
  std::uint64_t wrong_blocks = 0;
};

// The output for a person while a replay runs, on stderr: a bar on a terminal, otherwise a line
// every few seconds. Thread-safe.
class Console {
 public:
  enum class Mode : std::uint8_t { silent, lines, bar };
  // A failing server fails in the same way thousands of times.
  static constexpr std::size_t kMaxMessages = 20;
  static constexpr std::chrono::seconds kLineEvery{5};

  Console(std::FILE* out, Mode mode);

  // Shows and keeps the first kMaxMessages; counts the others.
  void message(std::string_view text);
  void progress(const Progress& progress, std::chrono::steady_clock::duration elapsed);
  // Ends the bar's line.
  void finish();

  std::vector<std::string> messages() const;

 private:
  void print_line(std::string_view line) CAIRN_REQUIRES(mutex_);

  std::FILE* const out_;
  const Mode mode_;
  mutable Mutex mutex_;
  std::vector<std::string> messages_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t dropped_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool bar_shown_ CAIRN_GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::duration last_line_ CAIRN_GUARDED_BY(mutex_){};
};

}  // namespace cairn::replay
