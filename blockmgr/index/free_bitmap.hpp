#pragma once

#include <cstdint>
#include <vector>

namespace cairn {

// Tracks which of the numbers 0..size-1 are free. It hands out the lowest, so that consecutive
// takes give neighbours if possible: copies between neighbours are merged into one. It is a tree of
// bitmaps with fan-out 64, so taking and giving back cost a few word operations at any size. Not
// thread-safe.
class FreeBitmap {
 public:
  explicit FreeBitmap(std::uint32_t size);  // all free

  std::uint32_t free_count() const { return free_count_; }
  bool is_free(std::uint32_t number) const;
  std::uint32_t lowest() const;          // REQUIRES: free_count() > 0
  std::uint32_t take_lowest();           // likewise
  void take(std::uint32_t number);       // REQUIRES: free
  void give_back(std::uint32_t number);  // REQUIRES: not free
  // Adds numbers, none of them free. If it throws std::bad_alloc, nothing has changed.
  void grow(std::uint32_t size);
  std::uint64_t memory_bytes() const;

 private:
  std::uint32_t free_count_;
  // levels_[0] has one bit per number. A bit of a higher level says that the word below is not
  // zero.
  std::vector<std::vector<std::uint64_t>> levels_;
};

}  // namespace cairn
