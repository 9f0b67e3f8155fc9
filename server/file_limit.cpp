#include "server/file_limit.hpp"

#include <sys/resource.h>

#include <algorithm>

#include "base/passed_files.hpp"

namespace cairn {

HttpFiles http_files_within(std::uint64_t max_files, const HttpFiles& wanted) {
  const auto at_most = [](std::uint32_t asked, std::uint64_t files) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(asked, files));
  };
  const std::uint64_t left = max_files - std::min(kReservedFiles, max_files / 2);
  HttpFiles files;
  files.unix_connections = at_most(wanted.unix_connections, std::max<std::uint64_t>(left / 8, 1));
  files.passed_files =
      at_most(wanted.passed_files, std::max<std::uint64_t>(left / 8, kMaxPassedFiles));
  const std::uint64_t taken = std::uint64_t{files.unix_connections} + files.passed_files;
  files.connections = at_most(wanted.connections, std::max<std::uint64_t>(left, taken + 1) - taken);
  return files;
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
