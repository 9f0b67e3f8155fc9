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

// What an engine registers.
struct AgentConfig {
  struct Part {
    ExportedMemory memory = {};                    // size_bytes: unused
    std::optional<std::uint32_t> descriptor = {};  // its file is the one of that number
    std::uint64_t offset_bytes = 0;                // of the region in what is opened
    std::uint64_t size_bytes = 0;
    std::string device_uuid = {};  // empty: not told

    friend bool operator==(const Part&, const Part&) = default;
  };
  std::string name = {};
  int device_id = 0;
  LayoutConfig shape = {};
  LayoutKind layout = LayoutKind::layer_separate;
  BlockDim block_dim = BlockDim::first;
  std::vector<Part> regions = {};

  friend bool operator==(const AgentConfig&, const AgentConfig&) = default;
};

// A connection that agents go with: they end once nobody holds it. Whoever holds it sees how many
// there are.
struct AgentConnection {
  std::atomic<std::uint32_t> agents{0};
};
using AgentTether = std::optional<std::weak_ptr<AgentConnection>>;

// An agent, for those who ask.
struct AgentInfo {
  AgentConfig config = {};
  std::string device_uuid = {};
  LeaseHolder holder = {};
  std::uint64_t region_bytes = 0;  // that the layout uses of each
  std::uint64_t block_stride_bytes = 0;
  std::uint64_t layer_stride_bytes = 0;
  std::uint64_t outer_stride_bytes = 0;
  std::vector<std::uint64_t> inodes = {};               // of the regions; 0: no file
  std::optional<std::int64_t> expires_at_unix_ms = {};  // nothing: it goes with its connection
  std::size_t copies = 0;                               // under way
};

struct AgentStats {
  struct Direction {
    std::uint64_t done_blocks = 0;
    std::uint64_t failed_blocks = 0;
    std::uint64_t bytes = 0;
  };
  std::uint64_t agents = 0;
  Direction loads = {};
  Direction stores = {};
};

// How it is counted. Thread-safe.
struct AgentCounters {
  struct alignas(kCacheLineBytes) Direction {
    std::atomic<std::uint64_t> done_blocks{0};
    std::atomic<std::uint64_t> failed_blocks{0};
    std::atomic<std::uint64_t> bytes{0};

    AgentStats::Direction now() const {
      return {.done_blocks = done_blocks, .failed_blocks = failed_blocks, .bytes = bytes};
    }
  };
  Direction loads;
  Direction stores;
};
static_assert(has_lines_of_its_own<AgentCounters::Direction>);

}  // namespace cairn
