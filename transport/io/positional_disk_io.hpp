#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "transport/io/disk_io.hpp"

namespace cairn {

// preadv(2) and pwritev(2), replaceable for tests. Each returns the number of bytes moved, or the
// negated errno.
struct FileCalls {
  struct Target {
    int fd = -1;
    std::uint64_t offset_bytes = 0;
  };
  using Call = std::function<std::int64_t(Target, std::span<const iovec>)>;
  Call read;
  Call write;

  static FileCalls of_the_system();
};

// Consecutive runs that are also adjacent in the file share one system call.
std::unique_ptr<DiskIo> make_positional_disk_io(FileCalls calls,
                                                std::uint32_t threads = kDiskThreads);

}  // namespace cairn
