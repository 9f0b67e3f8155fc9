#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/cache_line.hpp"

namespace cairn {

// The free indices of a fixed number of objects, last in, first out, without a lock: a Treiber
// stack. Its nodes are never freed, so a thread that was overtaken reads an old link but never
// freed memory. The head has a tag that every change increments, so its compare-and-swap then fails
// even if the same index is on top again (no ABA). The tag has 32 bits: a thread would have to
// sleep through exactly 2^32 changes between two instructions. Thread-safe.
class alignas(kCacheLineBytes) IndexFreeList {
 public:
  // All of 0 … capacity - 1 are free, and are popped in that order. REQUIRES: capacity < kNone.
  static constexpr std::uint32_t kNone = 0xffff'fffe;
  explicit IndexFreeList(std::uint32_t capacity);

  std::uint32_t capacity() const { return static_cast<std::uint32_t>(next_.size()); }
  // nullopt if none is free.
  std::optional<std::uint32_t> pop();
  // REQUIRES: it was popped and not pushed since.
  void push(std::uint32_t index);

 private:
  std::atomic<std::uint64_t> head_;               // tag << 32 | index of the first, or kNone
  std::vector<std::atomic<std::uint32_t>> next_;  // the one below it, kNone, or kTaken
};

static_assert(has_lines_of_its_own<IndexFreeList>);

}  // namespace cairn
