#include "replay/interrupt.hpp"

#include <csignal>
#include <ctime>

namespace cairn::replay {
namespace {

// How soon the watcher notices that it is no longer needed.
constexpr timespec kLookEvery{0, 50'000'000};

sigset_t interrupting() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

Interrupt::Interrupt() {
  const sigset_t signals = interrupting();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  watcher_ = std::jthread([source = source_, signals](const std::stop_token& stop) mutable {
    bool interrupted = false;
    while (!stop.stop_requested() && !interrupted) {
      interrupted = sigtimedwait(&signals, nullptr, &kLookEvery) >= 0;
    }
    if (interrupted) source.request_stop();
    // The next signal has its usual effect, on this thread.
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    while (!stop.stop_requested()) nanosleep(&kLookEvery, nullptr);
  });
}

}  // namespace cairn::replay
