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

// A piece of a segment: free, or in use.
struct HeapBlock : boost::intrusive::set_base_hook<> {
  HeapSegment* segment = nullptr;
  std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
  HeapBlock* before = nullptr;  // the neighbours by address, null at the segment's ends
  HeapBlock* after = nullptr;
  bool is_free = false;

  // For the user of the block.
  std::uint64_t recorded_streams = 0;  // bit i: stream i uses it in addition to its own
  std::uint32_t events = 0;            // that have not completed
  bool lost = false;                   // nobody can tell when its users are done
};

// Memory in one piece, divided into adjacent blocks.
struct HeapSegment {
  Region region;
  std::uint32_t lane = 0;
  bool is_small = false;
  HeapBlock* first = nullptr;
};

// Splits segments into blocks and merges them again: the placement of the caching allocator.
// Segments belong to a lane (a stream), and a block is reused in its lane only. Not thread-safe.
//
// The sizes are those of PyTorch's CUDACachingAllocator (kMinBlockSize, kSmallSize, kSmallBuffer,
// kLargeBuffer, kMinLargeAlloc, kRoundLarge in c10/core/AllocatorConfig.h), proven by years of use
// on the same devices.
class BlockHeap {
 public:
  static constexpr std::uint64_t kGranularityBytes = 512;
  // Small requests have separate segments, so that they do not keep large ones from being freed.
  static constexpr std::uint64_t kLargestSmallBytes = 1ull << 20;
  static constexpr std::uint64_t kSmallSegmentBytes = 2ull << 20;
  static constexpr std::uint64_t kLargeSegmentBytes = 20ull << 20;
  // From here on a request gets a segment of its size, rounded up to the unit that a device maps.
  static constexpr std::uint64_t kLeastOwnSegmentBytes = 10ull << 20;
  static constexpr std::uint64_t kSegmentRoundingBytes = 2ull << 20;
  // A larger request is refused before its rounding could overflow: 2^56 is more than devices can
  // address.
  static constexpr std::uint64_t kMaxBytes = 1ull << 56;
  static constexpr std::uint32_t kMaxLanes = 64;

  // The rounded size of a request, and the segment it needs if no free block serves it. REQUIRES: 0
  // < size_bytes <= kMaxBytes; and a rounded size.
  static std::uint64_t round_to_block(std::uint64_t size_bytes);
  static std::uint64_t segment_for(std::uint64_t block_bytes);

  // The smallest free block of the lane with at least `block_bytes`; among several, the one at the
  // lowest address. The excess is split off. Null if there is none.
  HeapBlock* take(std::uint32_t lane, std::uint64_t block_bytes);
  // Adds a segment and takes a block from it. REQUIRES: segment_for(block_bytes) bytes.
  HeapBlock* take_from_new(std::uint32_t lane, Region region, std::uint64_t block_bytes);
  // Frees a block and merges it with free neighbours.
  void put(HeapBlock& block);

  // Removes unused segments, the oldest first, until at most `keep_bytes` of them are left;
  // put_back() adds them again.
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

  std::deque<HeapBlock> nodes_;  // at stable addresses; the unused ones are linked by `after`
  HeapBlock* unused_nodes_ = nullptr;
  std::list<HeapSegment> segments_;
  std::array<Lane, kMaxLanes> lanes_;
  std::uint64_t reserved_bytes_ = 0;
  std::uint64_t free_bytes_ = 0;
  std::uint64_t splits_ = 0;
  std::uint64_t merges_ = 0;
};

}  // namespace cairn
