#pragma once

#include <cstddef>

namespace cairn {

// The unit in which cores pass memory to each other, on x86-64 and on most of arm64. What several
// threads write starts on a line of its own, so that its neighbours do not slow down with it.
inline constexpr std::size_t kCacheLineBytes = 64;

}  // namespace cairn
