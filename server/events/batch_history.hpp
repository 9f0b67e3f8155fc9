#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

namespace cairn {

// Events that are published together.
struct EventBatch {
  // Consecutive, except after events that were lost before they could be published.
  std::uint64_t number = 0;
  std::string topic;
  std::string payload;
};

// The latest batches. A sender keeps only a number, not batches, so a slow client costs nothing.
// Not thread-safe.
class BatchHistory {
 public:
  struct Limits {
    std::size_t max_batches = 0;
    std::size_t max_replayed = 0;  // of these, a replay sends at most the last ones
    std::uint64_t max_bytes = 0;   // of payloads
  };
  explicit BatchHistory(const Limits& limits) : limits_(limits) {}

  // Sets the batch's number.
  void add(EventBatch batch);
  // Leaves out a number, for events that were lost.
  void skip() { ++next_; }
  std::uint64_t next_number() const { return next_; }

  // Returns the first batch with this number or a later one; null if there is none yet.
  std::shared_ptr<const EventBatch> from(std::uint64_t number) const;
  // True if every batch from `number` on is still kept.
  bool holds_all_from(std::uint64_t number) const { return number >= floor_; }
  // The number at which a replay from `number` starts.
  std::uint64_t replay_from(std::uint64_t number) const;

 private:
  const Limits limits_;
  std::deque<std::shared_ptr<const EventBatch>> batches_;
  std::uint64_t bytes_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t floor_ = 0;  // above the numbers of all dropped batches
};

}  // namespace cairn
