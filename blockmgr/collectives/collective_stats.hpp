#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/clock.hpp"
#include "base/histogram.hpp"
#include "blockmgr/collectives/group_types.hpp"
#include "blockmgr/index/stats.hpp"

namespace cairn {

// The groups' counts since the server's start, and their current state.
struct CollectiveKindStats {
  std::array<std::uint64_t, kNumTransferOutcomes> operations{};  // ended, by TransferOutcome
  // To and from other ranks. A broadcast to many counts once on its root.
  std::uint64_t sent_blocks = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_blocks = 0;
  std::uint64_t received_bytes = 0;
  // From the operation's beginning here, so it includes the wait for the other ranks.
  DurationHistogram::Snapshot durations;
};
struct GroupsStats {
  std::array<std::uint64_t, kNumGroupStates> groups{};  // by GroupState
  std::array<std::uint64_t, kNumGroupStates> ranks{};   // in those groups, this server's included
  std::uint64_t failures = 0;                           // groups that failed
  std::uint64_t queued_operations = 0;                  // including the current ones
  std::array<CollectiveKindStats, kNumCollectiveKinds> kinds{};  // by CollectiveKind
};

// The running counts of one kind. Thread-safe.
class CollectiveCounters {
 public:
  void ended(TransferOutcome outcome) { add(operations_[static_cast<std::size_t>(outcome)], 1); }
  void took(Duration duration) {
    durations_.record(static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(duration).count()));
  }
  struct Blocks {
    std::uint64_t count = 0;
    std::uint64_t size_bytes = 0;
  };
  void sent(Blocks blocks) {
    add(sent_blocks_, blocks.count);
    add(sent_bytes_, blocks.size_bytes);
  }
  void received(Blocks blocks) {
    add(received_blocks_, blocks.count);
    add(received_bytes_, blocks.size_bytes);
  }
  CollectiveKindStats now() const;

 private:
  using Count = std::atomic<std::uint64_t>;
  static void add(Count& count, std::uint64_t more) {
    count.fetch_add(more, std::memory_order_relaxed);
  }

  std::array<Count, kNumTransferOutcomes> operations_{};
  Count sent_blocks_ = 0;
  Count sent_bytes_ = 0;
  Count received_blocks_ = 0;
  Count received_bytes_ = 0;
  DurationHistogram durations_;
};
using AllCollectiveCounters =
    std::array<CollectiveCounters, kNumCollectiveKinds>;  // by CollectiveKind

}  // namespace cairn
