#include "server/file_limit.hpp"

#include <sys/resource.h>

#include <algorithm>

namespace cairn {

std::uint32_t connections_within(std::uint64_t max_files, std::uint32_t wanted) {
  const std::uint64_t left = max_files - std::min(kReservedFiles, max_files / 2);
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(left, 1, std::max<std::uint32_t>(wanted, 1)));
}

std::uint64_t raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return UINT64_MAX;
  const rlimit raised{limit.rlim_max, limit.rlim_max};
  if (limit.rlim_cur != limit.rlim_max && ::setrlimit(RLIMIT_NOFILE, &raised) == 0)
    return raised.rlim_cur;
  return limit.rlim_cur;
}

}  // namespace cairn
