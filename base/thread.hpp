#pragma once

#include <exception>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "base/result.hpp"
#include "base/unique_function.hpp"

namespace cairn {

// Logs an exception of a thread's work to the process's log. Allocates as little as possible.
void report_thrown(std::string_view work, const char* what) noexcept;

// Runs `work` and logs any exception, mostly std::bad_alloc, instead of ending the thread and the
// process. Returns true if nothing was thrown.
template <class Work>
bool guarded(std::string_view name, Work&& work) noexcept {
  try {
    work();
    return true;
  } catch (const std::exception& thrown) {
    report_thrown(name, thrown.what());
  } catch (...) {
    report_thrown(name, "an object that is not a std::exception");
  }
  return false;
}

// A thread with a name for system tools (the first 15 bytes). An exception in its work ends the
// thread, not the process. The destructor requests a stop and joins.
class Thread {
 public:
  using Work = UniqueFunction<void(const std::stop_token&)>;

  Thread() = default;
  // For server start. Throws std::system_error with the thread's name if no thread can be started
  // (EAGAIN: pids.max of a container, RLIMIT_NPROC).
  Thread(const std::string& name, Work work);
  // For any other time. Returns unavailable if no thread can be started.
  static Result<Thread> start(const std::string& name, Work work);

  bool joinable() const { return thread_.joinable(); }
  void request_stop() { thread_.request_stop(); }
  void join() { thread_.join(); }
  // Afterwards nobody waits for it; it must own what it uses.
  void detach() { thread_.detach(); }

 private:
  std::jthread thread_;
};

}  // namespace cairn
