#include "blockmgr/eviction/optimum.hpp"

#include <algorithm>
#include <boost/unordered/unordered_flat_map.hpp>
#include <queue>

#include "base/assert.hpp"

namespace cairn {
namespace {

struct Node {
  std::uint32_t next_use = 0;  // the request; the number of requests if none
  bool is_present = false;
  bool is_listed = false;
  std::uint32_t previous = kNoBlock;
  std::uint32_t next = kNoBlock;
};

// The next use of all blocks in a list is the same request, so those of a prefix are one chain
// (blocks that are never used again may be many chains). A block was last used with its parent or
// before it, so each list has children before their parents.
class Optimum {
 public:
  Optimum(std::span<const ShadowRequest> requests, std::uint32_t capacity_blocks)
      : requests_(requests), room_(capacity_blocks), lists_(requests.size() + 1) {
    boost::unordered_flat_map<std::uint64_t, std::uint32_t> numbers;
    std::size_t uses = 0;
    for (const ShadowRequest& request : requests) uses += request.blocks.size();
    used_.reserve(uses);
    next_uses_.resize(uses);
    for (const ShadowRequest& request : requests) {
      for (const std::uint64_t block : request.blocks) {
        const auto next = static_cast<std::uint32_t>(numbers.size());
        used_.push_back(numbers.emplace(block, next).first->second);
      }
    }
    nodes_.resize(numbers.size());
    std::vector<std::uint32_t> coming(nodes_.size(), static_cast<std::uint32_t>(requests.size()));
    for (std::size_t r = requests.size(), at = uses; r-- > 0;) {
      for (std::size_t i = requests[r].blocks.size(); i-- > 0;) {
        --at;
        next_uses_[at] = coming[used_[at]];
        // A request that names a block twice uses it once.
        if (next_uses_[at] == r) next_uses_[at] = nodes_[used_[at]].next_use;
        nodes_[used_[at]].next_use = next_uses_[at];
        coming[used_[at]] = static_cast<std::uint32_t>(r);
      }
    }
  }

  std::uint64_t run() {
    std::uint64_t hits = 0;
    std::size_t first = 0;
    for (const ShadowRequest& request : requests_) {
      const std::span used = std::span(used_).subspan(first, request.blocks.size());
      bool is_prefix = true;
      for (const std::uint32_t block : used) {
        is_prefix = is_prefix && nodes_[block].is_present;
        if (is_prefix) ++hits;
        if (nodes_[block].is_listed) unlist(block);
      }
      std::size_t kept = 0;
      for (; kept < used.size() && (nodes_[used[kept]].is_present || make_room()); ++kept) {
        if (nodes_[used[kept]].is_present) continue;
        nodes_[used[kept]].is_present = true;
        --room_;
      }
      for (std::size_t i = kept; i-- > 0;) {
        if (nodes_[used[i]].is_listed) continue;
        nodes_[used[i]].next_use = next_uses_[first + i];
        list(used[i]);
      }
      first += used.size();
    }
    return hits;
  }

 private:
  void list(std::uint32_t block) {
    LinkedBlocks& list = lists_[nodes_[block].next_use];
    if (list.empty()) non_empty_.push(nodes_[block].next_use);
    list.insert_before(nodes_, block, kNoBlock);
    nodes_[block].is_listed = true;
  }
  void unlist(std::uint32_t block) {
    lists_[nodes_[block].next_use].remove(nodes_, block);
    nodes_[block].is_listed = false;
  }
  // Returns false if the current request uses all blocks.
  bool make_room() {
    if (room_ > 0) return true;
    while (!non_empty_.empty() && lists_[non_empty_.top()].empty()) non_empty_.pop();
    if (non_empty_.empty()) return false;
    const std::uint32_t block = lists_[non_empty_.top()].first;
    unlist(block);
    nodes_[block].is_present = false;
    ++room_;
    return true;
  }

  std::span<const ShadowRequest> requests_;
  std::uint32_t room_;
  std::vector<std::uint32_t> used_;       // by all requests, one after the other
  std::vector<std::uint32_t> next_uses_;  // in the same order
  std::vector<Node> nodes_;
  std::vector<LinkedBlocks> lists_;               // by next use
  std::priority_queue<std::uint32_t> non_empty_;  // all lists that are not empty, and some that are
};

}  // namespace

std::uint64_t optimum_hits(std::span<const ShadowRequest> requests, std::uint32_t capacity_blocks) {
  return Optimum(requests, capacity_blocks).run();
}

}  // namespace cairn
