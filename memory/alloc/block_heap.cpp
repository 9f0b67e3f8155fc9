#include "memory/alloc/block_heap.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"
#include "base/checked.hpp"

namespace cairn {
namespace {

std::uint64_t round_up(std::uint64_t size_bytes, std::uint64_t multiple_bytes) {
  return *checked_align_up(size_bytes, multiple_bytes);
}

// Whether the rest of a block is worth being a block. Among large ones, a rest that could serve no
// large request stays with its user (PyTorch's should_split()).
bool worth_a_split(bool is_small, std::uint64_t rest_bytes) {
  return is_small ? rest_bytes >= BlockHeap::kGranularityBytes
                  : rest_bytes > BlockHeap::kLargestSmallBytes;
}

}  // namespace

std::uint64_t BlockHeap::round_to_block(std::uint64_t size_bytes) {
  return round_up(size_bytes, kGranularityBytes);
}

std::uint64_t BlockHeap::segment_for(std::uint64_t block_bytes) {
  if (block_bytes <= kLargestSmallBytes) return kSmallSegmentBytes;
  if (block_bytes < kLeastOwnSegmentBytes) return kLargeSegmentBytes;
  return round_up(block_bytes, kSegmentRoundingBytes);
}

HeapBlock* BlockHeap::take(std::uint32_t lane, std::uint64_t block_bytes) {
  FreeBlocks& blocks = block_bytes <= kLargestSmallBytes ? lanes_[lane].small : lanes_[lane].large;
  const auto holds_less = [](const HeapBlock& block, std::uint64_t wanted_bytes) {
    return block.size_bytes < wanted_bytes;
  };
  const auto found = blocks.lower_bound(block_bytes, holds_less);
  if (found == blocks.end()) return nullptr;
  take_found(*found, block_bytes);
  return &*found;
}

HeapBlock* BlockHeap::take_from_new(std::uint32_t lane, Region region, std::uint64_t block_bytes) {
  CAIRN_ASSERT(region.size_bytes() == segment_for(block_bytes), "the request would not fit");
  HeapBlock& block = add_segment(lane, std::move(region));
  take_found(block, block_bytes);
  return &block;
}

void BlockHeap::put(HeapBlock& block) {
  CAIRN_ASSERT(!block.is_free, "a block freed twice would be given out twice");
  HeapBlock* whole = &block;
  free_bytes_ += block.size_bytes;
  if (block.after != nullptr && block.after->is_free) {
    remove(*block.after);
    absorb_after(block);
  }
  if (block.before != nullptr && block.before->is_free) {
    whole = block.before;
    remove(*whole);
    absorb_after(*whole);
  }
  insert(*whole);
}

bool BlockHeap::all_free(const HeapSegment& segment) {
  return segment.first->is_free && segment.first->after == nullptr;
}

std::list<HeapSegment> BlockHeap::take_free_segments(std::uint64_t keep_bytes) {
  std::uint64_t all_free_bytes = 0;
  for (const HeapSegment& segment : segments_) {
    if (all_free(segment)) all_free_bytes += segment.region.size_bytes();
  }
  std::list<HeapSegment> taken;
  for (auto next = segments_.begin(); next != segments_.end() && all_free_bytes > keep_bytes;) {
    const auto segment = next++;
    if (!all_free(*segment)) continue;
    HeapBlock& first = *segment->first;
    all_free_bytes -= first.size_bytes;
    remove(first);
    free_bytes_ -= first.size_bytes;
    reserved_bytes_ -= first.size_bytes;
    recycle(first);
    segment->first = nullptr;
    taken.splice(taken.end(), segments_, segment);
  }
  return taken;
}

void BlockHeap::put_back(std::list<HeapSegment> segments) {
  for (HeapSegment& segment : segments) add_segment(segment.lane, std::move(segment.region));
}

std::uint64_t BlockHeap::largest_free_bytes() const {
  std::uint64_t largest_bytes = 0;
  for (const Lane& lane : lanes_) {
    for (const FreeBlocks* blocks : {&lane.small, &lane.large}) {
      if (!blocks->empty()) largest_bytes = std::max(largest_bytes, blocks->rbegin()->size_bytes);
    }
  }
  return largest_bytes;
}

BlockHeap::FreeBlocks& BlockHeap::free_blocks(const HeapSegment& segment) {
  Lane& lane = lanes_[segment.lane];
  return segment.is_small ? lane.small : lane.large;
}

// A segment that consists of one free block.
HeapBlock& BlockHeap::add_segment(std::uint32_t lane, Region region) {
  HeapBlock& block = new_node();
  HeapSegment& segment = segments_.emplace_back();
  segment.region = std::move(region);
  segment.lane = lane;
  segment.is_small = segment.region.size_bytes() == kSmallSegmentBytes;
  segment.first = &block;
  block.segment = &segment;
  block.data = segment.region.data();
  block.size_bytes = segment.region.size_bytes();
  reserved_bytes_ += block.size_bytes;
  free_bytes_ += block.size_bytes;
  insert(block);
  return block;
}
static_assert(BlockHeap::kSmallSegmentBytes < BlockHeap::kLeastOwnSegmentBytes &&
                  BlockHeap::kSmallSegmentBytes < BlockHeap::kLargeSegmentBytes,
              "a segment's size tells its kind");

void BlockHeap::take_found(HeapBlock& block, std::uint64_t block_bytes) {
  remove(block);
  const std::uint64_t rest_bytes = block.size_bytes - block_bytes;
  if (worth_a_split(block.segment->is_small, rest_bytes)) {
    HeapBlock& rest = new_node();
    rest.segment = block.segment;
    rest.data = block.data + block_bytes;
    rest.size_bytes = rest_bytes;
    rest.before = &block;
    rest.after = block.after;
    if (rest.after != nullptr) rest.after->before = &rest;
    block.after = &rest;
    block.size_bytes = block_bytes;
    insert(rest);
    ++splits_;
  }
  free_bytes_ -= block.size_bytes;
}

void BlockHeap::insert(HeapBlock& block) {
  block.is_free = true;
  free_blocks(*block.segment).insert(block);
}

void BlockHeap::remove(HeapBlock& block) {
  FreeBlocks& blocks = free_blocks(*block.segment);
  blocks.erase(blocks.iterator_to(block));
  block.is_free = false;
}

// The lower of two blocks remains, so that a segment's first block is always the same node.
void BlockHeap::absorb_after(HeapBlock& block) {
  HeapBlock& gone = *block.after;
  block.size_bytes += gone.size_bytes;
  block.after = gone.after;
  if (block.after != nullptr) block.after->before = &block;
  recycle(gone);
  ++merges_;
}

HeapBlock& BlockHeap::new_node() {
  if (unused_nodes_ == nullptr) return nodes_.emplace_back();
  HeapBlock& node = *unused_nodes_;
  unused_nodes_ = node.after;
  node.after = nullptr;
  return node;
}

void BlockHeap::recycle(HeapBlock& node) {
  node.segment = nullptr;
  node.data = nullptr;
  node.size_bytes = 0;
  node.before = nullptr;
  node.is_free = false;
  node.after = unused_nodes_;
  unused_nodes_ = &node;
}

}  // namespace cairn
