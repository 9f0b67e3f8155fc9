#include "server/routes/transfer_waits.hpp"

#include <chrono>
#include <string>

namespace cairn {
namespace {

// One wait: whoever comes first answers.
class Wait {
 public:
  Wait(std::shared_ptr<std::atomic<std::size_t>> open, UniqueFunction<void()> answer)
      : open_(std::move(open)), answer_(std::move(answer)) {
    open_->fetch_add(1, std::memory_order_relaxed);
  }
  ~Wait() { open_->fetch_sub(1, std::memory_order_relaxed); }
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  // True for the first; the answer is then its caller's to run, or to drop.
  bool claim() { return !claimed_.exchange(true); }
  void fire() {
    if (!claim()) return;
    UniqueFunction<void()> answer = std::move(answer_);
    answer();
  }

 private:
  std::shared_ptr<std::atomic<std::size_t>> open_;
  std::atomic<bool> claimed_{false};
  UniqueFunction<void()> answer_;
};

}  // namespace

TransferWaits::TransferWaits(BlockManager& manager)
    : manager_(manager), open_(std::make_shared<std::atomic<std::size_t>>(0)), timers_(kMaxWaits) {}

Result<> TransferWaits::wait(TransferId id, std::uint32_t wait_ms, UniqueFunction<void()> answer) {
  if (wait_ms == 0) {
    answer();
    return {};
  }
  const Error full{ErrorCode::queue_full, "more than " + std::to_string(kMaxWaits) +
                                              " requests wait for transfers; ask again later"};
  if (open_->load(std::memory_order_relaxed) >= kMaxWaits) return full;
  auto wait = std::make_shared<Wait>(open_, std::move(answer));
  const auto ticket =
      timers_.add(std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms),
                  [wait] { wait->fire(); });
  if (!ticket) return full;
  auto watched = manager_.watch_transfer(id, [wait](const TransferStatus&) { wait->fire(); });
  if (!watched) {
    // Unless the timer was quicker, which then has answered.
    if (!wait->claim()) return {};
    timers_.cancel(*ticket);
    return watched;
  }
  return {};
}

}  // namespace cairn
