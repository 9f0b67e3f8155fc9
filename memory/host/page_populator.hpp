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

// Allocates the pages of memory before its first use. If a write is the first to touch a page, it
// pays for the kernel's clearing: with pages of 4 KiB, a thread then writes 0.3 to 1 GB/s instead
// of 7. Early allocation must not take memory that others need now. So it stops if memory runs
// short. After each piece of 512 KiB a thread rests for as long as the piece took, which is longer
// on a busy machine.
//
// Its threads have normal priority. The kernel locks the address space while it allocates pages. If
// a thread of low priority loses its processor to another process at that moment, it is away for a
// quarter of a second, and every thread of the server that allocates waits for it.
//
// Thread-safe. Tasks end before it.
class PagePopulator {
 public:
  struct Options {
    unsigned threads = 0;  // 0: nothing is allocated before its first use
    std::function<std::uint64_t()> available_bytes =
        [memory = std::make_shared<const AvailableMemory>()] { return memory->bytes(); };
    std::uint64_t kept_free_bytes = std::uint64_t{1} << 30;  // for the page cache, and for others
    std::function<void(std::chrono::nanoseconds)> rest = [](std::chrono::nanoseconds time) {
      std::this_thread::sleep_for(time);
    };
  };
  using Bytes = std::span<std::byte>;

  // The population of one memory. Its destructor waits for the current step, some milliseconds, and
  // leaves the other pages to their first use.
  class Task {
   public:
    ~Task();
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;
    // Never more than requested; reaches that unless memory runs short.
    std::uint64_t populated_bytes() const { return done_.load(std::memory_order_relaxed); }

   private:
    friend class PagePopulator;
    Task(PagePopulator& owner, std::vector<Bytes> memory)
        : owner_(owner), memory_(std::move(memory)) {}
    PagePopulator& owner_;
    const std::vector<Bytes> memory_;
    // The start of the next step, and the number of steps in progress: under the owner's lock.
    std::size_t part_ = 0;
    std::size_t at_ = 0;
    unsigned under_way_ = 0;
    std::atomic<std::uint64_t> done_{0};
  };

  explicit PagePopulator(Options options);
  ~PagePopulator();
  PagePopulator(const PagePopulator&) = delete;
  PagePopulator& operator=(const PagePopulator&) = delete;

  // Null if nothing is allocated early. The bytes do not change, and others may use them meanwhile.
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
