#pragma once

#include <cstdint>
#include <vector>

namespace cairn {

// Which of the numbers 0..size-1 are free. Hands out the lowest, so that numbers taken one after
// the other are neighbours where they can be: copies between neighbours are joined into one. A tree
// of bitmaps of fan-out 64: taking and giving back are a handful of word operations at any size.
// Not thread-safe.
class FreeBitmap {
 public:
  explicit FreeBitmap(std::uint32_t size);  // all free

  std::uint32_t free_count() const { return free_count_; }
  bool is_free(std::uint32_t number) const;
  std::uint32_t take_lowest();           // REQUIRES: free_count() > 0
  void take(std::uint32_t number);       // REQUIRES: free
  void give_back(std::uint32_t number);  // REQUIRES: not free
  // More numbers, none of which is free. Throws std::bad_alloc, and nothing has changed.
  void grow(std::uint32_t size);
  std::uint64_t memory_bytes() const;

 private:
  std::uint32_t free_count_;
  // levels_[0] has a bit a number; a bit of a higher level says that the word below is not zero.
  std::vector<std::vector<std::uint64_t>> levels_;
};

}  // namespace cairn
