#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cache_line.hpp"
#include "blockmgr/index/types.hpp"
#include "layouts/geometry.hpp"
#include "memory/exported_memory.hpp"

namespace cairn {

// The memory that an engine registers.
struct EngineMemoryConfig {
  struct Part {
    ExportedMemory memory = {};                    // size_bytes: unused
    std::optional<std::uint32_t> descriptor = {};  // index of its open file in the message
    std::uint64_t offset_bytes = 0;                // the region's offset in the opened memory
    std::uint64_t size_bytes = 0;
    std::string device_uuid = {};  // empty: not given

    friend bool operator==(const Part&, const Part&) = default;
  };
  std::string name = {};
  int device_id = 0;
  LayoutConfig shape = {};
  LayoutKind layout = LayoutKind::layer_separate;
  BlockDim block_dim = BlockDim::first;
  std::vector<Part> regions = {};

  friend bool operator==(const EngineMemoryConfig&, const EngineMemoryConfig&) = default;
};

// A connection. Agents bound to it end once nobody holds it. It counts them.
struct EngineConnection {
  std::atomic<std::uint32_t> engine_memories{0};
};
using EngineTether = std::optional<std::weak_ptr<EngineConnection>>;

// An agent's description for clients.
struct EngineMemoryInfo {
  EngineMemoryConfig config = {};
  std::string device_uuid = {};
  LeaseHolder holder = {};
  std::uint64_t region_bytes = 0;  // bytes of each region that the layout uses
  std::uint64_t block_stride_bytes = 0;
  std::uint64_t layer_stride_bytes = 0;
  std::uint64_t outer_stride_bytes = 0;
  std::vector<std::uint64_t> inodes = {};               // one per region; 0: no file
  std::optional<std::int64_t> expires_at_unix_ms = {};  // nullopt: it ends with its connection
  std::size_t copies = 0;                               // in progress
};

struct EngineMemoryStats {
  struct Direction {
    std::uint64_t done_blocks = 0;
    std::uint64_t failed_blocks = 0;
    std::uint64_t bytes = 0;
  };
  std::uint64_t engine_memories = 0;
  Direction loads = {};
  Direction stores = {};
};

// Live counters behind EngineMemoryStats. Thread-safe.
struct EngineMemoryCounters {
  struct alignas(kCacheLineBytes) Direction {
    std::atomic<std::uint64_t> done_blocks{0};
    std::atomic<std::uint64_t> failed_blocks{0};
    std::atomic<std::uint64_t> bytes{0};

    EngineMemoryStats::Direction now() const {
      return {.done_blocks = done_blocks, .failed_blocks = failed_blocks, .bytes = bytes};
    }
  };
  Direction loads;
  Direction stores;
};
static_assert(has_lines_of_its_own<EngineMemoryCounters::Direction>);

}  // namespace cairn
