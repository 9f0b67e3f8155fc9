#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/huge_pages.hpp"
#include "blockmgr/eviction/history.hpp"

namespace cairn {

// Blocks of one request may have different futures: each group is counted separately. `hinted` are
// the blocks with a hint.
enum class BlockGroup : std::uint8_t {
  used_once,
  used_twice,
  used_often,
  used_most,
  hinted,
  hub,
  tail,
};
inline constexpr std::size_t kBlockGroups = 7;

// A past request, remembered as long as its blocks teach something.
struct alignas(64) PastRequest {
  std::uint32_t asked = 0;    // blocks that it asked for
  std::uint32_t used = 0;     // its blocks found or stored so far
  std::uint32_t unknown = 0;  // of those, without a history
  std::uint32_t each = 1;     // a block that is seen stands for this many
  std::uint32_t output_tokens = 0;
  std::uint8_t turn = 1;  // how often its conversation has come, this request included
  bool ends_in_part = false;
  NextUse next_use = NextUse::unknown;  // hint for its blocks in `hinted`
  std::uint8_t left_buckets = 0;        // age buckets counted so far
  float weight = 0;                     // of each of its blocks, in the table
  // Its blocks that have not been used since, by group.
  std::array<std::uint32_t, kBlockGroups> waiting{};
  std::int64_t unix_ms = 0;

  std::uint32_t blocks() const { return std::max({asked, used, 1U}); }
};
static_assert(sizeof(PastRequest) == 64, "what a cache remembers of requests is bounded");

// The last requests, in the order in which they began. A request's age is the number of blocks
// requested since: a cache of that size turns over in that time. Not thread-safe.
class RequestLog {
 public:
  explicit RequestLog(std::uint32_t capacity)
      : records_(std::bit_ceil(capacity)),
        marks_(records_.size()),
        mask_(std::bit_ceil(capacity) - 1) {}

  // Read often for requests that grow old. Separate from the records, each of which is a cache
  // miss.
  struct Mark {
    std::uint32_t position_blocks = 0;  // requested before it
    std::uint32_t waiting = 0;          // its waiting blocks, in all groups
  };

  RequestNumber begin(const RequestStart& start) {
    PastRequest& record = at(++last_);
    if (start.sample) position_ += start.sample->skipped;
    record = {.asked = start.blocks, .unix_ms = start.unix_ms};
    own_mark(last_) = {.position_blocks = position_};
    if (start.sample) {
      record.each = start.sample->one_in;
      // The last block seen is then counted as the last of all.
      if (start.sample->has_last) record.used = start.blocks - start.sample->seen;
    }
    position_ += start.blocks;
    if (count_ <= mask_) ++count_;
    return last_;
  }
  // Adds a request of an earlier run, which began after `position_blocks` requested blocks. If
  // the last one began later, both count as beginning together.
  RequestNumber restore(std::uint32_t position_blocks, const PastRequest& record) {
    const bool is_later = static_cast<std::int32_t>(position_blocks - position_) > 0;
    if (position_ == 0 || is_later) position_ = position_blocks;
    begin({});
    at(last_) = record;
    return last_;
  }
  bool remembers(RequestNumber request) const { return last_ - request < count_; }
  PastRequest& operator[](RequestNumber request) { return at(request); }  // REQUIRES: remembered
  const PastRequest& operator[](RequestNumber request) const { return records_[request & mask_]; }
  const Mark& mark(RequestNumber request) const { return marks_[request & mask_]; }
  std::uint32_t age_blocks(RequestNumber request) const {
    return position_ - mark(request).position_blocks;
  }
  std::uint32_t position_blocks() const { return position_; }  // requested so far
  // Blocks of the request start or stop waiting for another use. REQUIRES: remembered.
  void wait(RequestNumber request, BlockGroup group, std::uint32_t blocks) {
    at(request).waiting[static_cast<std::size_t>(group)] += blocks;
    own_mark(request).waiting += blocks;
  }
  void end_wait(RequestNumber request, BlockGroup group, std::uint32_t blocks) {
    at(request).waiting[static_cast<std::size_t>(group)] -= blocks;
    own_mark(request).waiting -= blocks;
  }
  RequestNumber last() const { return last_; }
  RequestNumber first() const { return last_ - count_ + 1; }  // REQUIRES: one has begun
  std::uint32_t capacity() const { return mask_ + 1; }
  static constexpr std::uint64_t kBytesARequest = sizeof(PastRequest) + 2 * sizeof(std::uint32_t);
  std::uint64_t memory_bytes() const { return records_.size() * kBytesARequest; }

 private:
  PastRequest& at(RequestNumber request) { return records_[request & mask_]; }
  Mark& own_mark(RequestNumber request) { return marks_[request & mask_]; }

  HugeVector<PastRequest> records_;
  HugeVector<Mark> marks_;
  std::uint32_t mask_;
  RequestNumber last_ = 0;
  std::uint32_t count_ = 0;
  std::uint32_t position_ = 0;
};

}  // namespace cairn
