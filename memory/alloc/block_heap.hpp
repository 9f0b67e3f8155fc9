#pragma once

#include <array>
#include <boost/intrusive/set.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>

#include "memory/region.hpp"

namespace cairn {

struct HeapSegment;

// A piece of a segment: free, or somebody's.
struct HeapBlock : boost::intrusive::set_base_hook<> {
  HeapSegment* segment = nullptr;
  std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
  HeapBlock* before = nullptr;  // the neighbours by address, null at the segment's ends
  HeapBlock* after = nullptr;
  bool is_free = false;

  // For whoever has the block.
  std::uint64_t recorded_streams = 0;  // bit i: stream i uses it beside its own
  std::uint32_t events = 0;            // that have not been reached
  bool lost = false;                   // nobody can say when its users are done
};

// Memory in one piece, cut into blocks that touch each other.
struct HeapSegment {
  Region region;
  std::uint32_t lane = 0;
  bool is_small = false;
  HeapBlock* first = nullptr;
};

// Cuts segments into blocks and joins them again: the placement of the caching allocator. Segments
// belong to a lane (a stream), and a block is reused in its lane only. Not thread-safe.
//
// The sizes are those of PyTorch's CUDACachingAllocator (kMinBlockSize, kSmallSize, kSmallBuffer,
// kLargeBuffer, kMinLargeAlloc, kRoundLarge in c10/core/AllocatorConfig.h), which years of use on
// the same devices have settled.
class BlockHeap {
 public:
  static constexpr std::uint64_t kGranularityBytes = 512;
  // Small requests have segments of their own, so that they do not nail down large ones.
  static constexpr std::uint64_t kLargestSmallBytes = 1ull << 20;
  static constexpr std::uint64_t kSmallSegmentBytes = 2ull << 20;
  static constexpr std::uint64_t kLargeSegmentBytes = 20ull << 20;
  // From here a request has a segment of its own size, rounded up to what a device maps at a time.
  static constexpr std::uint64_t kLeastOwnSegmentBytes = 10ull << 20;
  static constexpr std::uint64_t kSegmentRoundingBytes = 2ull << 20;
  // A request beyond this is refused before its rounding could overflow: 2^56 is more than devices
  // can address.
  static constexpr std::uint64_t kMaxBytes = 1ull << 56;
  static constexpr std::uint32_t kMaxLanes = 64;

  // What a request becomes, and the segment it needs where no free block serves it.
  // REQUIRES: 0 < size_bytes <= kMaxBytes; and a rounded size.
  static std::uint64_t round_to_block(std::uint64_t size_bytes);
  static std::uint64_t segment_for(std::uint64_t block_bytes);

  // The smallest free block of the lane that holds `block_bytes`, of several the one at the lowest
  // address; what it has too much is cut off. Null where there is none.
  HeapBlock* take(std::uint32_t lane, std::uint64_t block_bytes);
  // Adds a segment and takes a block from it. REQUIRES: segment_for(block_bytes) bytes.
  HeapBlock* take_from_new(std::uint32_t lane, Region region, std::uint64_t block_bytes);
  // Gives a block back; it is joined with free neighbours.
  void put(HeapBlock& block);

  // Takes out segments of which no block is in use, the oldest first, until no more than
  // `keep_bytes` of such are left; put_back() adds them again.
  std::list<HeapSegment> take_free_segments(std::uint64_t keep_bytes);
  void put_back(std::list<HeapSegment> segments);

  std::size_t segments() const { return segments_.size(); }
  std::uint64_t reserved_bytes() const { return reserved_bytes_; }
  std::uint64_t free_bytes() const { return free_bytes_; }
  std::uint64_t largest_free_bytes() const;
  std::uint64_t splits() const { return splits_; }
  std::uint64_t merges() const { return merges_; }

 private:
  struct BySizeAndAddress {
    bool operator()(const HeapBlock& a, const HeapBlock& b) const {
      return a.size_bytes != b.size_bytes ? a.size_bytes < b.size_bytes : a.data < b.data;
    }
  };
  using FreeBlocks = boost::intrusive::set<HeapBlock, boost::intrusive::compare<BySizeAndAddress>>;
  struct Lane {
    FreeBlocks small;
    FreeBlocks large;
  };

  FreeBlocks& free_blocks(const HeapSegment& segment);
  static bool all_free(const HeapSegment& segment);
  HeapBlock& add_segment(std::uint32_t lane, Region region);
  void take_found(HeapBlock& block, std::uint64_t block_bytes);
  void insert(HeapBlock& block);
  void remove(HeapBlock& block);
  void absorb_after(HeapBlock& block);
  HeapBlock& new_node();
  void recycle(HeapBlock& node);

  std::deque<HeapBlock> nodes_;  // stay where they are; the unused ones are chained by `after`
  HeapBlock* unused_nodes_ = nullptr;
  std::list<HeapSegment> segments_;
  std::array<Lane, kMaxLanes> lanes_;
  std::uint64_t reserved_bytes_ = 0;
  std::uint64_t free_bytes_ = 0;
  std::uint64_t splits_ = 0;
  std::uint64_t merges_ = 0;
};

}  // namespace cairn
