#pragma once

#include <cstdint>

namespace cairn {

inline constexpr std::uint32_t kNoBlock = ~std::uint32_t{0};

// A list through `previous` and `next` of numbered nodes, which the caller owns.
struct LinkedBlocks {
  std::uint32_t first = kNoBlock;
  std::uint32_t last = kNoBlock;
  std::uint32_t count = 0;

  bool empty() const { return first == kNoBlock; }

  // Appends if `next` is kNoBlock.
  template <class Nodes>
  void insert_before(Nodes& nodes, std::uint32_t block, std::uint32_t next) {
    ++count;
    auto& node = nodes[block];
    node.next = next;
    node.previous = next == kNoBlock ? last : nodes[next].previous;
    (node.previous == kNoBlock ? first : nodes[node.previous].next) = block;
    (next == kNoBlock ? last : nodes[next].previous) = block;
  }

  template <class Nodes>
  void append(Nodes& nodes, std::uint32_t block) {
    ++count;
    auto& node = nodes[block];
    node.next = kNoBlock;
    node.previous = last;
    (last == kNoBlock ? first : nodes[last].next) = block;
    last = block;
  }

  template <class Nodes>
  void remove(Nodes& nodes, std::uint32_t block) {
    --count;
    const auto& node = nodes[block];
    (node.previous == kNoBlock ? first : nodes[node.previous].next) = node.next;
    (node.next == kNoBlock ? last : nodes[node.next].previous) = node.previous;
  }
};

}  // namespace cairn
