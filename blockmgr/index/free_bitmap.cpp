#include "blockmgr/index/free_bitmap.hpp"

#include <bit>

#include "base/assert.hpp"

namespace cairn {
namespace {

constexpr std::uint32_t kWordBits = 64;

std::vector<std::uint64_t> full_level(std::uint32_t bits) {
  std::vector<std::uint64_t> words((bits + kWordBits - 1) / kWordBits, ~std::uint64_t{0});
  if (const std::uint32_t rest = bits % kWordBits; rest != 0) {
    words.back() = (std::uint64_t{1} << rest) - 1;
  }
  return words;
}

}  // namespace

FreeBitmap::FreeBitmap(std::uint32_t size) : free_count_(size) {
  if (size == 0) return;
  std::uint32_t bits = size;
  do {
    levels_.push_back(full_level(bits));
    bits = static_cast<std::uint32_t>(levels_.back().size());
  } while (bits > 1);
}

bool FreeBitmap::is_free(std::uint32_t number) const {
  return (levels_.front()[number / kWordBits] >> (number % kWordBits) & 1) != 0;
}

std::uint32_t FreeBitmap::lowest() const {
  CAIRN_ASSERT(free_count_ > 0, "a slot that is in use would be handed out");
  std::uint32_t number = 0;
  for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
    number = number * kWordBits + static_cast<std::uint32_t>(std::countr_zero((*level)[number]));
  }
  return number;
}

std::uint32_t FreeBitmap::take_lowest() {
  const std::uint32_t number = lowest();
  take(number);
  return number;
}

void FreeBitmap::take(std::uint32_t number) {
  CAIRN_ASSERT(is_free(number), "a slot that is in use would be handed out");
  std::uint32_t bit = number;
  for (auto& level : levels_) {
    std::uint64_t& word = level[bit / kWordBits];
    word &= ~(std::uint64_t{1} << (bit % kWordBits));
    if (word != 0) break;
    bit /= kWordBits;
  }
  --free_count_;
}

void FreeBitmap::give_back(std::uint32_t number) {
  CAIRN_ASSERT(!is_free(number), "a slot freed twice would be handed out twice");
  std::uint32_t bit = number;
  for (auto& level : levels_) {
    std::uint64_t& word = level[bit / kWordBits];
    const bool was_empty = word == 0;
    word |= std::uint64_t{1} << (bit % kWordBits);
    if (!was_empty) break;
    bit /= kWordBits;
  }
  ++free_count_;
}

void FreeBitmap::grow(std::uint32_t size) {
  const auto words_for = [](std::size_t bits) { return (bits + kWordBits - 1) / kWordBits; };
  std::vector<std::vector<std::uint64_t>> levels;
  levels.push_back(levels_.empty() ? std::vector<std::uint64_t>() : levels_.front());
  levels.front().resize(words_for(size));
  while (levels.back().size() > 1) {
    const std::vector<std::uint64_t>& below = levels.back();
    std::vector<std::uint64_t> level(words_for(below.size()));
    for (std::size_t i = 0; i < below.size(); ++i) {
      if (below[i] != 0) level[i / kWordBits] |= std::uint64_t{1} << (i % kWordBits);
    }
    levels.push_back(std::move(level));
  }
  levels_ = std::move(levels);
}

std::uint64_t FreeBitmap::memory_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& level : levels_) bytes += level.size() * sizeof(std::uint64_t);
  return bytes;
}

}  // namespace cairn
