#pragma once

#include <cstdint>

namespace cairn {

// The arithmetic of the copy kernel, separate from it: constant expressions, so that both the
// kernel and the CPU can run it.

// Parts begin at multiples of this within their piece: a warp's 16-byte accesses.
inline constexpr std::uint64_t kPartGranularityBytes = 512;

struct CopyPart {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;  // equals the start if the piece is too short for the part
};

constexpr CopyPart copy_part(std::uint64_t size_bytes, std::uint64_t part, std::uint64_t parts) {
  const std::uint64_t even = (size_bytes + parts - 1) / parts;
  const std::uint64_t step =
      (even + kPartGranularityBytes - 1) / kPartGranularityBytes * kPartGranularityBytes;
  const std::uint64_t begin = part * step < size_bytes ? part * step : size_bytes;
  const std::uint64_t end = size_bytes - begin < step ? size_bytes : begin + step;
  return {begin, end};
}

// A run of bytes as single bytes, words of one width that are aligned on both sides, and single
// bytes again.
struct CopyWords {
  std::uint64_t head_bytes = 0;
  std::uint64_t word_bytes = 1;  // 16, 8, 4, 2 or 1
  std::uint64_t words = 0;
  std::uint64_t tail_bytes = 0;
};

constexpr CopyWords copy_words(std::uint64_t destination, std::uint64_t source,
                               std::uint64_t size_bytes) {
  CopyWords words{.word_bytes = 16};
  while ((destination - source) % words.word_bytes != 0) words.word_bytes /= 2;
  const std::uint64_t to_aligned = (0 - destination) % words.word_bytes;
  words.head_bytes = to_aligned < size_bytes ? to_aligned : size_bytes;
  words.words = (size_bytes - words.head_bytes) / words.word_bytes;
  words.tail_bytes = size_bytes - words.head_bytes - words.words * words.word_bytes;
  return words;
}

}  // namespace cairn
