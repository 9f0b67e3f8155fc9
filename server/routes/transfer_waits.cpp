#include "server/routes/transfer_waits.hpp"

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "base/mutex.hpp"

namespace cairn {

// The waits share it: a watcher of a transfer may outlive the TransferWaits.
struct TransferWaits::Shared {
  // Number of waits, including those that timed out but whose transfer has not ended.
  std::atomic<std::size_t> open{0};

  void cancel(const TimerQueue::Ticket& ticket) {
    MutexLock lock(mutex);
    if (timers != nullptr) timers->cancel(ticket);
  }

  Mutex mutex;
  TimerQueue* timers CAIRN_GUARDED_BY(mutex) = nullptr;  // null once destroyed
};

// One wait: the end of the transfer or the timeout, whichever is first, runs the answer.
class TransferWaits::Wait {
 public:
  Wait(std::shared_ptr<Shared> shared, UniqueFunction<void()> answer)
      : shared_(std::move(shared)), answer_(std::move(answer)) {
    shared_->open.fetch_add(1, std::memory_order_relaxed);
  }
  ~Wait() { shared_->open.fetch_sub(1, std::memory_order_relaxed); }
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  // Stores the timer of the wait; cancels it if the answer was already run.
  void set_timer(const TimerQueue::Ticket& ticket) {
    {
      MutexLock lock(mutex_);
      if (answer_) {
        timer_ = ticket;
        return;
      }
    }
    shared_->cancel(ticket);
  }
  // Returns the answer to the first caller, to run or to drop; empty to all others.
  UniqueFunction<void()> claim() {
    MutexLock lock(mutex_);
    return std::exchange(answer_, {});
  }
  void run_out() {
    if (auto answer = claim()) answer();
  }
  // Cancels the timer, which would otherwise occupy a place in the queue until its time.
  void transfer_ended() {
    UniqueFunction<void()> answer;
    std::optional<TimerQueue::Ticket> timer;
    {
      MutexLock lock(mutex_);
      answer = std::exchange(answer_, {});
      timer = std::exchange(timer_, std::nullopt);
    }
    if (timer) shared_->cancel(*timer);
    if (answer) answer();
  }
  bool answered() const {
    MutexLock lock(mutex_);
    return !answer_;
  }

 private:
  const std::shared_ptr<Shared> shared_;
  mutable Mutex mutex_;
  UniqueFunction<void()> answer_ CAIRN_GUARDED_BY(mutex_);
  std::optional<TimerQueue::Ticket> timer_ CAIRN_GUARDED_BY(mutex_);
};

TransferWaits::TransferWaits(BlockManager& manager)
    : manager_(manager), shared_(std::make_shared<Shared>()), timers_(kMaxWaits) {
  MutexLock lock(shared_->mutex);
  shared_->timers = &timers_;
}

TransferWaits::~TransferWaits() {
  MutexLock lock(shared_->mutex);
  shared_->timers = nullptr;
}

Result<> TransferWaits::wait(TransferId id, std::uint32_t wait_ms, UniqueFunction<void()> answer) {
  if (wait_ms == 0) {
    answer();
    return {};
  }
  const Error full{ErrorCode::queue_full, "more than " + std::to_string(kMaxWaits) +
                                              " requests wait for transfers; ask again later"};
  if (shared_->open.load(std::memory_order_relaxed) >= kMaxWaits) return full;
  auto wait = std::make_shared<Wait>(shared_, std::move(answer));
  // Before there is a timer: if the transfer has ended, this runs the answer and no timer is
  // needed.
  CAIRN_TRY(manager_.watch_transfer(id, [wait](const TransferStatus&) { wait->transfer_ended(); }));
  if (wait->answered()) return {};
  const auto ticket =
      timers_.add(std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms),
                  [wait] { wait->run_out(); });
  if (ticket) {
    wait->set_timer(*ticket);
  } else if (wait->claim()) {
    return full;
  }
  return {};
}

void TransferWaits::wait_for_all(const std::vector<Waited>& transfers,
                                 UniqueFunction<void()> answer) {
  struct Waiting {
    std::atomic<std::size_t> left;
    UniqueFunction<void()> answer;
    void end_one() {
      if (--left == 0) answer();
    }
  };
  const auto waiting = std::make_shared<Waiting>();
  waiting->left = transfers.size() + 1;
  waiting->answer = std::move(answer);
  for (const auto& [id, wait_ms] : transfers) {
    if (!wait(id, wait_ms, [waiting] { waiting->end_one(); })) waiting->end_one();
  }
  waiting->end_one();
}

bool TransferWaits::after(std::uint32_t delay_ms, UniqueFunction<void()> function) {
  const TimePoint when = std::chrono::steady_clock::now() + std::chrono::milliseconds(delay_ms);
  return timers_.add(when, std::move(function)).has_value();
}

}  // namespace cairn
