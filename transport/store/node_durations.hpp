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

// Of a look's share of its 2 ms, of a value over a busy network, of a time-out: few, as there is a
// histogram for each node and operation.
inline constexpr std::array<std::uint64_t, 7> kNodeBoundsUs = {250,    1'000,   2'500,    10'000,
                                                               50'000, 250'000, 1'000'000};
using NodeHistogram = Histogram<kNodeBoundsUs>;

// How long each node takes over what it is asked, by operation. Not thread-safe.
class NodeDurations {
 public:
  using Clock = std::chrono::steady_clock;

  // Ten series for each of their operations in use, of which there are four at most: 2,560. Nodes
  // beyond them are told of together.
  static constexpr std::size_t kMaxToldApart = 64;
  static constexpr const char* kOthers = "other";
  // One that nothing was asked of for so long gives its place to the next one beyond.
  static constexpr std::chrono::minutes kIdle{10};

  struct Request {
    const std::string& node;
    StoreOperation operation;
    Clock::time_point begun;
    Clock::time_point ended;
  };
  void record(const Request& request);
  // It is a node no more.
  void forget(const std::string& node) { nodes_.erase(node); }

  struct OfNode {
    std::string node;
    std::array<NodeHistogram::Snapshot, kNumStoreOperations> operations;
  };
  std::vector<OfNode> snapshot() const;  // the others last

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
