#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/histogram.hpp"
#include "transport/store/store_operation.hpp"

namespace cairn {

// A probe's share of 2 ms, a value over a busy network, a time-out. Only a few bounds, because each
// node and operation has its own histogram.
inline constexpr std::array<std::uint64_t, 7> kNodeBoundsUs = {250,    1'000,   2'500,    10'000,
                                                               50'000, 250'000, 1'000'000};
using NodeHistogram = Histogram<kNodeBoundsUs>;

// How long each node takes per operation. Not thread-safe.
class NodeDurations {
 public:
  using Clock = std::chrono::steady_clock;

  // Nodes with their own series, ten per operation in use. With at most four operations that is
  // 2,560. Further nodes share one entry.
  static constexpr std::size_t kMaxNodes = 64;
  static constexpr const char* kOthers = "other";
  // A node without requests for this long gives its entry to the next further node.
  static constexpr std::chrono::minutes kIdle{10};

  struct Request {
    const std::string& node;
    StoreOperation operation;
    Clock::time_point begun;
    Clock::time_point ended;
  };
  void record(const Request& request);
  // The node has left.
  void forget(const std::string& node) { nodes_.erase(node); }

  struct OfNode {
    std::string node;
    std::array<NodeHistogram::Snapshot, kNumStoreOperations> operations;
  };
  std::vector<OfNode> snapshot() const;  // kOthers comes last

 private:
  struct Entry {
    std::array<NodeHistogram, kNumStoreOperations> operations;
    Clock::time_point last;
  };
  Entry& entry_of(const Request& request);

  std::map<std::string, Entry> nodes_;
  Entry others_;
  bool has_others_ = false;
};

}  // namespace cairn
