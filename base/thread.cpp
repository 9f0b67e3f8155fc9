#include "base/thread.hpp"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "base/process_log.hpp"

namespace cairn {
namespace {

constexpr std::size_t kMaxNameBytes = 15;  // kernel limit, without the terminating zero

}  // namespace

void report_thrown(std::string_view work, const char* what) noexcept {
  report_error("work of a thread failed", {{"work", work}, {"why", what}}, {.reason = work});
}

Thread::Thread(const std::string& name, Work work) try
    : thread_([name = name.substr(0, kMaxNameBytes),
               work = std::move(work)](const std::stop_token& stop) mutable {
        ::pthread_setname_np(::pthread_self(), name.c_str());
        guarded(name, [&] { work(stop); });
      }) {
} catch (const std::system_error& failure) {
  throw std::system_error(failure.code(), "there is no thread for '" + name + "'");
}

Result<Thread> Thread::start(const std::string& name, Work work) {
  try {
    return Thread(name, std::move(work));
  } catch (const std::system_error& failure) {
    return Error{ErrorCode::unavailable, failure.what()};
  }
}

}  // namespace cairn
