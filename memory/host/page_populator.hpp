#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "base/thread.hpp"
#include "memory/host/available_memory.hpp"

namespace cairn {

// Takes the pages of memory before its first use. A page that is first touched by a write costs
// that write the kernel's clearing of it: with pages of 4 KiB, a thread then writes 0.3 to 1 GB/s
// instead of 7. What is only asked for early must not take what others need now: it stops where
// memory runs short, and after each piece of 512 KiB a thread rests for as long as that took, which
// is the longer the busier the machine is.
//
// Its threads are of normal priority. The kernel holds the address space while it takes pages; a
// thread of low priority that loses its processor there to another process stays away for a
// quarter of a second, and whatever thread of the server allocates waits for it.
//
// Thread-safe. Tasks end before it.
class PagePopulator {
 public:
  struct Options {
    unsigned threads = 0;  // 0: nothing is taken before its first use
    std::function<std::uint64_t()> available_bytes =
        [memory = std::make_shared<const AvailableMemory>()] { return memory->bytes(); };
    std::uint64_t kept_free_bytes = std::uint64_t{1} << 30;  // for the page cache, and for others
    std::function<void(std::chrono::nanoseconds)> rest = [](std::chrono::nanoseconds time) {
      std::this_thread::sleep_for(time);
    };
  };
  using Bytes = std::span<std::byte>;

  // Pages of one memory on their way. Its end waits for the step that is being done, some
  // milliseconds, and leaves the other pages to their first use.
  class Task {
   public:
    ~Task();
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;
    // Never more than what was asked for, which it reaches unless memory runs short.
    std::uint64_t populated_bytes() const { return done_.load(std::memory_order_relaxed); }

   private:
    friend class PagePopulator;
    Task(PagePopulator& owner, std::vector<Bytes> memory)
        : owner_(owner), memory_(std::move(memory)) {}
    PagePopulator& owner_;
    const std::vector<Bytes> memory_;
    // Where the next step begins, and how many are being done: under the owner's lock.
    std::size_t part_ = 0;
    std::size_t at_ = 0;
    unsigned under_way_ = 0;
    std::atomic<std::uint64_t> done_{0};
  };

  explicit PagePopulator(Options options);
  ~PagePopulator();
  PagePopulator(const PagePopulator&) = delete;
  PagePopulator& operator=(const PagePopulator&) = delete;

  // Null where nothing is taken early. The bytes stay what they are, whoever uses them meanwhile.
  // REQUIRES: each part is mapped and writable until the task ends, and begins at a page.
  std::unique_ptr<Task> begin(std::vector<Bytes> memory);

 private:
  void run(const std::stop_token& stop);
  void start_threads() CAIRN_REQUIRES(mutex_);
  std::optional<Bytes> next_step() CAIRN_REQUIRES(mutex_);
  bool take(Bytes step) const;

  const Options options_;
  Mutex mutex_;
  Condition changed_;
  bool ending_ CAIRN_GUARDED_BY(mutex_) = false;
  std::deque<Task*> tasks_ CAIRN_GUARDED_BY(mutex_);  // with steps to do, the oldest first
  std::vector<Thread> threads_;                       // started with the first task
};

}  // namespace cairn
