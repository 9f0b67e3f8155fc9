#pragma once

#include <cstddef>

namespace cairn {

// Size of a cache line on x86-64 and most arm64. Data that several threads write starts on its own
// line, to avoid false sharing.
inline constexpr std::size_t kCacheLineBytes = 64;

// x86-64 prefetches lines in pairs. Data that different threads write often starts on its own pair.
inline constexpr std::size_t kLinePairBytes = 2 * kCacheLineBytes;

// True if no other object shares the lines of a T, in arrays too.
template <class T>
inline constexpr bool has_lines_of_its_own = alignof(T) % kCacheLineBytes == 0 &&
                                             sizeof(T) % alignof(T) == 0;
template <class T>
inline constexpr bool has_pairs_of_its_own = alignof(T) % kLinePairBytes == 0 &&
                                             sizeof(T) % alignof(T) == 0;

}  // namespace cairn
