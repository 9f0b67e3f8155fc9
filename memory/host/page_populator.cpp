#include "memory/host/page_populator.hpp"

#include <sys/mman.h>

#include <chrono>
#include <utility>

namespace cairn {
namespace {

// Step between two checks of the remaining memory, which cost some 0.1 ms.
constexpr std::size_t kStepBytes = std::size_t{4} << 20;
// Size of one call. The kernel holds the address space meanwhile, some 0.2 ms, and every thread
// that maps memory, or whose malloc does, waits for that.
constexpr std::size_t kPieceBytes = std::size_t{512} << 10;

}  // namespace

PagePopulator::PagePopulator(Options options) : options_(std::move(options)) {}

PagePopulator::~PagePopulator() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
}

std::unique_ptr<PagePopulator::Task> PagePopulator::begin(std::vector<Bytes> memory) {
  if (options_.threads == 0) return nullptr;
  std::unique_ptr<Task> task(new Task(*this, std::move(memory)));
  {
    MutexLock lock(mutex_);
    tasks_.push_back(task.get());
    start_threads();
  }
  changed_.notify_all();
  return task;
}

PagePopulator::Task::~Task() {
  MutexLock lock(owner_.mutex_);
  std::erase(owner_.tasks_, this);
  while (under_way_ > 0) owner_.changed_.wait(owner_.mutex_);
}

void PagePopulator::start_threads() {
  while (threads_.size() < options_.threads) {
    auto thread = Thread::start("cairn-pages", [this](const std::stop_token& stop) { run(stop); });
    if (!thread) return;  // the existing threads do it; without any, the first use does
    threads_.push_back(std::move(*thread));
  }
}

void PagePopulator::run(const std::stop_token& stop) {
  MutexLock lock(mutex_);
  while (!ending_ && !stop.stop_requested()) {
    if (tasks_.empty()) {
      changed_.wait(mutex_);
      continue;
    }
    Task& task = *tasks_.front();
    const std::optional<Bytes> step = next_step();
    if (!step) continue;
    ++task.under_way_;
    mutex_.unlock();
    bool taken = false;
    guarded("taking pages", [&] { taken = take(*step); });
    mutex_.lock();
    --task.under_way_;
    if (taken) {
      task.done_.fetch_add(step->size(), std::memory_order_relaxed);
    } else {
      std::erase(tasks_, &task);
    }
    if (task.under_way_ == 0) changed_.notify_all();
  }
}

bool PagePopulator::take(Bytes step) const {
  const std::uint64_t asked_bytes = step.size() * options_.threads;  // each checks at once
  if (options_.available_bytes() < options_.kept_free_bytes + asked_bytes) return false;
  while (!step.empty()) {
    const Bytes piece = step.first(std::min(kPieceBytes, step.size()));
    const auto start = std::chrono::steady_clock::now();
    // Kernels before 5.14 do not support it; nothing else allocates pages of memory in use.
    if (::madvise(piece.data(), piece.size(), MADV_POPULATE_WRITE) != 0) return false;
    options_.rest(std::chrono::steady_clock::now() - start);
    step = step.subspan(piece.size());
  }
  return true;
}

std::optional<PagePopulator::Bytes> PagePopulator::next_step() {
  Task& task = *tasks_.front();
  while (task.part_ < task.memory_.size() && task.at_ == task.memory_[task.part_].size()) {
    ++task.part_;
    task.at_ = 0;
  }
  if (task.part_ == task.memory_.size()) {
    tasks_.pop_front();
    return std::nullopt;
  }
  const Bytes part = task.memory_[task.part_];
  const Bytes step = part.subspan(task.at_, std::min(kStepBytes, part.size() - task.at_));
  if (task.at_ == 0) ::madvise(part.data(), part.size(), MADV_HUGEPAGE);  // only a hint
  task.at_ += step.size();
  return step;
}

}  // namespace cairn
