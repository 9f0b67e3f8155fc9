#pragma once

#include <cstddef>

namespace cairn {

// The unit in which cores pass memory to each other, on x86-64 and on most of arm64. What several
// threads write starts on a line of its own, so that its neighbours do not slow down with it.
inline constexpr std::size_t kCacheLineBytes = 64;

// Lines that x86-64 fetches together: what is written often, beside what others write as often,
// starts on a pair of its own.
inline constexpr std::size_t kLinePairBytes = 2 * kCacheLineBytes;

// Nothing else lies on the lines of an object of this type, nor of the next in an array.
template <class T>
inline constexpr bool has_lines_of_its_own = alignof(T) % kCacheLineBytes == 0 &&
                                             sizeof(T) % alignof(T) == 0;
template <class T>
inline constexpr bool has_pairs_of_its_own = alignof(T) % kLinePairBytes == 0 &&
                                             sizeof(T) % alignof(T) == 0;

}  // namespace cairn
