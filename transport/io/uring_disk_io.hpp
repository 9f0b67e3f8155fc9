#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "transport/io/disk_io.hpp"

namespace cairn {

struct UringOptions {
  std::uint32_t depth = 128;               // pieces under way at once; more wait in turn
  std::uint64_t piece_bytes = 1ull << 20;  // longer runs are cut; a multiple of 4096
  // prepare() registers memory with the kernel: its pages are looked up and pinned once instead of
  // with each piece. `unavailable` where the kernel refuses, as it does beyond RLIMIT_MEMLOCK.
  bool register_buffers = true;
  // Sees how each piece ended (bytes, or a negated errno) and says how it did: for tests.
  std::function<std::int32_t(std::int32_t)> ended;
};

// Through io_uring. Runs that follow each other in the file, in the order given, are one piece as
// far as its size allows. `unavailable`, with the reason, where the kernel refuses it or this
// build has none.
Result<std::unique_ptr<DiskIo>> make_uring_disk_io(UringOptions options);

}  // namespace cairn
