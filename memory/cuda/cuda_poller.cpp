#include "memory/cuda/cuda_poller.hpp"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace cairn {
namespace {

// A block of 512 KiB takes 10 us over the bus: the first rounds find it within half of that. Longer
// work is polled less often, each round a sixteenth later, so that the delay stays a few percent of
// the wait. The interval ends at 50 us, 4% of a job of 64 MiB, where a round costs the core about a
// twentieth of its time.
constexpr long kFirstDelay_ns = 5'000;
constexpr long kLastDelay_ns = 50'000;
constexpr long kDelayGrowth = 16;

void sleep_ns(long delay_ns) {
  const ::timespec delay{.tv_sec = 0, .tv_nsec = delay_ns};
  ::clock_nanosleep(CLOCK_MONOTONIC, 0, &delay, nullptr);
}

}  // namespace

CudaPoller::CudaPoller() : thread_("cuda events", [this](const std::stop_token&) { run(); }) {}

CudaPoller::~CudaPoller() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    work_.notify_one();
  }
  thread_.join();
}

void CudaPoller::when_reached(Awaited awaited, Reached reached) {
  std::list<Waiter> added;
  added.push_back({.awaited = awaited, .reached = std::move(reached)});
  MutexLock lock(mutex_);
  waiters_.splice(waiters_.end(), added);
  joined_ = true;
  if (waiters_.size() == 1) work_.notify_one();
}

cudaError_t CudaPoller::wait(Awaited awaited) {
  Mutex mutex;
  Condition reached;
  cudaError_t outcome = cudaErrorNotReady;
  when_reached(awaited, [&](cudaError_t result) {
    MutexLock lock(mutex);
    outcome = result;
    reached.notify_one();  // under the lock: the waiter owns the condition
  });
  MutexLock lock(mutex);
  while (outcome == cudaErrorNotReady) reached.wait(mutex);
  return outcome;
}

void CudaPoller::run() {
  ::prctl(PR_SET_TIMERSLACK, 1UL);  // the default would add 50 us to every sleep
  long delay_ns = kFirstDelay_ns;
  std::list<Waiter> asked;  // of the last round
  std::list<Waiter> ended;
  MutexLock lock(mutex_);
  for (;;) {
    while (waiters_.empty() && asked.empty() && !closing_) work_.wait(mutex_);
    if (waiters_.empty() && asked.empty()) return;
    if (std::exchange(joined_, false)) delay_ns = kFirstDelay_ns;
    asked.splice(asked.end(), waiters_);

    mutex_.unlock();
    const CudaDevice::Moment now = std::chrono::steady_clock::now();
    for (auto waiter = asked.begin(); waiter != asked.end();) {
      const auto next = std::next(waiter);
      waiter->outcome = cudaEventQuery(waiter->awaited.event);
      if (waiter->outcome != cudaErrorNotReady) {
        ended.splice(ended.end(), asked, waiter);
      } else {
        waiter->awaited.device.note_waiting(waiter->since, now);
      }
      waiter = next;
    }
    static_cast<void>(cudaGetLastError());  // of this thread, which checks nothing else
    if (ended.empty()) {
      sleep_ns(delay_ns);
      delay_ns = std::min(delay_ns + delay_ns / kDelayGrowth, kLastDelay_ns);
    }
    for (Waiter& waiter : ended) {
      guarded("cuda events", [&] { waiter.reached(waiter.outcome); });
    }
    ended.clear();
    mutex_.lock();
  }
}

}  // namespace cairn
