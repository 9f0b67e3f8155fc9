#pragma once

#include <cstdint>

namespace cairn {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;

}  // namespace cairn
