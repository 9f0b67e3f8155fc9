#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace cairn::e2e {

// A program that a test runs, with its output. The destructor kills and reaps it; the kernel kills
// it if the test dies. Thread-safe.
class ChildProcess {
 public:
  // Long enough for a server under a sanitizer on a busy machine: only a failing test waits this
  // long.
  static constexpr std::chrono::seconds kPatience{240};

  // `command` is the program's path and its arguments. Throws std::runtime_error if it cannot
  // start.
  explicit ChildProcess(const std::vector<std::string>& command);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Waits for a line with this text on either stream; nullopt if the program ends or the time runs
  // out first.
  std::optional<std::string> wait_for_line(std::string_view text);
  // Waits for the end: the exit code, or 128 + the signal; nullopt if the time runs out first.
  std::optional<int> wait();

  // Does nothing to a program that has ended.
  void signal(int number);

  pid_t pid() const { return pid_; }
  bool running() const;
  std::string standard_output() const;
  std::string standard_error() const;

 private:
  void follow(int output, int error);

  pid_t pid_ = -1;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string output_;
  std::string error_;
  std::optional<int> exit_code_;
  std::jthread follower_;
};

}  // namespace cairn::e2e
