#pragma once

#include <exception>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "base/result.hpp"
#include "base/unique_function.hpp"

namespace cairn {

// Says in the process's log that work of a thread threw. Takes no memory it cannot do without.
void report_thrown(std::string_view work, const char* what) noexcept;

// Runs what must not take its thread, and with it the process, along when it throws; mostly that is
// std::bad_alloc. True where it did not throw.
template <class Work>
bool guarded(std::string_view name, Work&& work) noexcept {
  try {
    work();
    return true;
  } catch (const std::exception& thrown) {
    report_thrown(name, thrown.what());
  } catch (...) {
    report_thrown(name, "something that is no exception");
  }
  return false;
}

// A thread with a name, which the system's tools show (its first 15 bytes). What its work throws
// ends the thread and not the process. Joined at its end, after it was asked to stop.
class Thread {
 public:
  using Work = UniqueFunction<void(const std::stop_token&)>;

  Thread() = default;
  // For the start of the server. Throws std::system_error, naming the thread, where there is none
  // to be had (EAGAIN: pids.max of a container, RLIMIT_NPROC).
  Thread(const std::string& name, Work work);
  // For any other time. unavailable where there is none to be had.
  static Result<Thread> start(const std::string& name, Work work);

  bool joinable() const { return thread_.joinable(); }
  void request_stop() { thread_.request_stop(); }
  void join() { thread_.join(); }
  // Nobody waits for its end any more: what it works on is its own.
  void detach() { thread_.detach(); }

 private:
  std::jthread thread_;
};

}  // namespace cairn
