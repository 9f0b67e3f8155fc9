#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

namespace cairn {

// Events that are published together.
struct EventBatch {
  std::uint64_t number = 0;  // one more than that of the batch before it, or further where some
                             // events were lost before they could be published
  std::string topic;
  std::string payload;
};

// The last batches. Who sends them keeps a number and no batches, so that a slow client costs
// nothing. Not thread-safe.
class BatchHistory {
 public:
  struct Limits {
    std::size_t max_batches = 0;
    std::size_t max_replayed = 0;  // of these, the last ones that a replay begins with
    std::uint64_t max_bytes = 0;   // of payloads
  };
  explicit BatchHistory(const Limits& limits) : limits_(limits) {}

  // Its number is set here.
  void add(EventBatch batch);
  // The next number is never given: what it would have told is lost.
  void skip() { ++next_; }
  std::uint64_t next_number() const { return next_; }

  // The first batch of this number or a later one; null where there is none yet.
  std::shared_ptr<const EventBatch> from(std::uint64_t number) const;
  // Every batch from that number on is still here.
  bool holds_all_from(std::uint64_t number) const { return number >= floor_; }
  // Where a replay from that number on begins.
  std::uint64_t replay_from(std::uint64_t number) const;

 private:
  const Limits limits_;
  std::deque<std::shared_ptr<const EventBatch>> batches_;
  std::uint64_t bytes_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t floor_ = 0;  // after the last one that was let go
};

}  // namespace cairn
