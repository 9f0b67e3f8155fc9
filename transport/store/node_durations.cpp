#include "transport/store/node_durations.hpp"

#include <algorithm>

namespace cairn {

void NodeDurations::record(const Request& request) {
  Entry& entry = entry_of(request);
  const auto took =
      std::chrono::duration_cast<std::chrono::microseconds>(request.ended - request.begun);
  entry.operations[static_cast<std::size_t>(request.operation)].record(
      static_cast<std::uint64_t>(took.count()));
  entry.last = request.ended;
}

NodeDurations::Entry& NodeDurations::entry_of(const Request& request) {
  if (const auto at = nodes_.find(request.node); at != nodes_.end()) return at->second;
  if (nodes_.size() >= kMaxNodes) {
    const auto idle =
        std::ranges::min_element(nodes_, {}, [](const auto& node) { return node.second.last; });
    if (request.ended - idle->second.last < kIdle) {
      has_others_ = true;
      return others_;
    }
    nodes_.erase(idle);
  }
  return nodes_[request.node];
}

std::vector<NodeDurations::OfNode> NodeDurations::snapshot() const {
  std::vector<OfNode> all;
  const auto add = [&](const std::string& node, const Entry& entry) {
    OfNode& one = all.emplace_back(OfNode{.node = node, .operations = {}});
    for (std::size_t i = 0; i < kNumStoreOperations; ++i) {
      one.operations[i] = entry.operations[i].snapshot();
    }
  };
  for (const auto& [node, entry] : nodes_) add(node, entry);
  if (has_others_) add(kOthers, others_);
  return all;
}

}  // namespace cairn
