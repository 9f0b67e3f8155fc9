#include "memory/cuda/cuda_poller.hpp"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <utility>

namespace cairn {
namespace {

// A block of 512 KiB takes 10 us over the bus: the first rounds find it within half of that. What
// takes longer is asked for less often, each round a sixteenth later, so that the delay stays a
// few percent of the wait; it ends at 50 us, 4% of a job of 64 MiB, where a round costs the core
// about a twentieth of its time.
constexpr long kFirstDelay_ns = 5'000;
constexpr long kLastDelay_ns = 50'000;
constexpr long kDelayGrowth = 16;

void sleep_ns(long delay_ns) {
  const ::timespec delay{.tv_sec = 0, .tv_nsec = delay_ns};
  ::clock_nanosleep(CLOCK_MONOTONIC, 0, &delay, nullptr);
}

}  // namespace

struct CudaPoller::Waiter {
  cudaEvent_t event;
  cudaError_t outcome = cudaErrorNotReady;
  Condition reached{};
};

CudaPoller::CudaPoller() : thread_("cuda events", [this](const std::stop_token&) { run(); }) {}

CudaPoller::~CudaPoller() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    work_.notify_one();
  }
  thread_.join();
}

cudaError_t CudaPoller::wait(cudaEvent_t event) {
  Waiter waiter{.event = event};
  MutexLock lock(mutex_);
  waiters_.push_back(&waiter);
  joined_ = true;
  if (waiters_.size() == 1) work_.notify_one();
  while (waiter.outcome == cudaErrorNotReady) waiter.reached.wait(mutex_);
  return waiter.outcome;
}

void CudaPoller::run() {
  ::prctl(PR_SET_TIMERSLACK, 1UL);  // the default would add 50 us to every sleep
  std::vector<std::pair<Waiter*, cudaError_t>> asked;
  long delay_ns = kFirstDelay_ns;
  MutexLock lock(mutex_);
  for (;;) {
    while (waiters_.empty() && !closing_) work_.wait(mutex_);
    if (waiters_.empty()) return;
    if (std::exchange(joined_, false)) delay_ns = kFirstDelay_ns;
    asked.clear();
    if (!guarded("cuda events", [&] { asked.reserve(waiters_.size()); })) {
      // Who waits goes on waiting: another round will find memory.
      mutex_.unlock();
      sleep_ns(kLastDelay_ns);
      mutex_.lock();
      continue;
    }
    for (Waiter* waiter : waiters_) asked.emplace_back(waiter, cudaErrorNotReady);

    mutex_.unlock();
    for (auto& [waiter, outcome] : asked) outcome = cudaEventQuery(waiter->event);
    static_cast<void>(cudaGetLastError());  // of this thread, which checks nothing else
    const bool some_ended = std::ranges::any_of(
        asked, [](const auto& pair) { return pair.second != cudaErrorNotReady; });
    if (!some_ended) {
      sleep_ns(delay_ns);
      delay_ns = std::min(delay_ns + delay_ns / kDelayGrowth, kLastDelay_ns);
    }
    mutex_.lock();

    for (const auto& [waiter, outcome] : asked) {
      if (outcome == cudaErrorNotReady) continue;
      std::erase(waiters_, waiter);
      waiter->outcome = outcome;
      waiter->reached.notify_one();  // under the lock: the waiter owns the condition
    }
  }
}

}  // namespace cairn
