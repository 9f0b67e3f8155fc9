#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "blockmgr/cache.hpp"
#include "memory/device_runtime.hpp"

namespace cairn {

// Blocks of pinned memory in canonical order, lent one by one: the way of a client's bytes into and
// out of tiers that the CPU does not reach. Thread-safe.
class CanonicalStaging : public std::enable_shared_from_this<CanonicalStaging> {
 public:
  struct Options {
    LayoutConfig shape;  // num_blocks aside
    std::uint64_t budget_bytes = 0;
  };
  // Borrows the runtime, which must outlive it.
  CanonicalStaging(DeviceRuntime& runtime, const Options& options);

  // A block on loan; goes back when destroyed, on any thread.
  class Block {
   public:
    Block(Block&& other) noexcept = default;
    Block& operator=(Block&&) = delete;
    ~Block();
    std::uint32_t number() const { return number_; }
    std::byte* data() const;
    const BlockLayout& layout() const;

   private:
    friend class CanonicalStaging;
    Block(std::shared_ptr<CanonicalStaging> pool, std::uint32_t number)
        : pool_(std::move(pool)), number_(number) {}
    std::shared_ptr<CanonicalStaging> pool_;
    std::uint32_t number_;
  };

  // Answers now, or when a block comes back, on the thread that gave it back. The first call
  // reserves the memory. queue_full; what the allocation answers.
  void acquire(Done<Block> done);

  // A block that is never lent and is all zeros.
  struct Zeros {
    const BlockLayout* layout = nullptr;
    std::uint32_t block = 0;
  };
  Result<Zeros> zeros();

 private:
  Result<> reserve() CAIRN_REQUIRES(mutex_);
  void give_back(std::uint32_t number);

  DeviceRuntime& runtime_;
  const Options options_;
  Mutex mutex_;
  std::optional<BlockLayout> layout_;  // set once, before the first loan
  std::vector<std::uint32_t> free_ CAIRN_GUARDED_BY(mutex_);
  std::deque<Done<Block>> waiting_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
