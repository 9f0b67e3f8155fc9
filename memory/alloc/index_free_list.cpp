#include "memory/alloc/index_free_list.hpp"

#include "base/assert.hpp"

namespace cairn {
namespace {

// In place of a link: the index is in use.
constexpr std::uint32_t kTaken = 0xffff'ffff;
static_assert(kTaken != IndexFreeList::kNone);

constexpr std::uint32_t index_of(std::uint64_t head) { return static_cast<std::uint32_t>(head); }
// The head that follows `head`, with another index on top.
constexpr std::uint64_t next_head(std::uint64_t head, std::uint32_t index) {
  return ((head >> 32) + 1) << 32 | index;
}

}  // namespace

IndexFreeList::IndexFreeList(std::uint32_t capacity)
    : head_(capacity == 0 ? kNone : 0), next_(capacity) {
  CAIRN_ASSERT(capacity < kNone, "an index would look like the end of the list");
  for (std::uint32_t i = 0; i < capacity; ++i) {
    next_[i].store(i + 1 == capacity ? kNone : i + 1, std::memory_order_relaxed);
  }
}

std::optional<std::uint32_t> IndexFreeList::pop() {
  // Acquire, here and after a failed exchange: the link was stored before its push was released.
  std::uint64_t head = head_.load(std::memory_order_acquire);
  for (;;) {
    const std::uint32_t index = index_of(head);
    if (index == kNone) return std::nullopt;
    // If another thread was faster, this may be kTaken or an old link: then the tag has changed.
    const std::uint32_t next = next_[index].load(std::memory_order_relaxed);
    if (head_.compare_exchange_weak(head, next_head(head, next), std::memory_order_acquire,
                                    std::memory_order_acquire)) {
      next_[index].store(kTaken, std::memory_order_relaxed);
      return index;
    }
  }
}

void IndexFreeList::push(std::uint32_t index) {
  CAIRN_ASSERT(index < next_.size(), "an index of another list");
  CAIRN_ASSERT(next_[index].load(std::memory_order_relaxed) == kTaken,
               "an index freed twice would be given out twice");
  std::uint64_t head = head_.load(std::memory_order_relaxed);
  do {
    next_[index].store(index_of(head), std::memory_order_relaxed);
    // Release: the thread that pops it sees what its last owner wrote, in the list and in the
    // object itself.
  } while (!head_.compare_exchange_weak(head, next_head(head, index), std::memory_order_release,
                                        std::memory_order_relaxed));
}

}  // namespace cairn
