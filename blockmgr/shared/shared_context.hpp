#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/cache_line.hpp"
#include "base/executor.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/cache/wait_group.hpp"
#include "blockmgr/shared/shared_events.hpp"
#include "blockmgr/shared/shared_holder.hpp"
#include "blockmgr/shared/shared_value.hpp"
#include "transport/store/block_peers.hpp"
#include "transport/store/shared_store.hpp"

namespace cairn {

// Blocks that are being stored at once: they are pinned, and a connection takes one at a time.
inline constexpr std::uint32_t kMaxStoring = 4;

// What was done since the cache was made.
struct alignas(kCacheLineBytes) SharedCounters {
  std::atomic<std::uint64_t> fetched_blocks{0};
  std::atomic<std::uint64_t> fetched_bytes{0};
  std::atomic<std::uint64_t> stored_blocks{0};
  std::atomic<std::uint64_t> stored_bytes{0};
  std::atomic<std::uint64_t> there_already{0};   // blocks that another server had stored
  std::atomic<std::uint64_t> dropped_full{0};    // not stored: too many waited
  std::atomic<std::uint64_t> dropped_failed{0};  // not stored: the store did not take it
  std::atomic<std::uint64_t> absent{0};          // gone between the look and the fetch
  std::atomic<std::uint64_t> announced{0};       // the store was told that they are here
  std::atomic<std::uint64_t> withdrawn{0};       // and that they are not
  std::array<std::atomic<std::uint64_t>, kNumWrongValues> wrong{};
  std::atomic<std::uint64_t> probes{0};
  std::atomic<std::uint64_t> probes_spared{0};  // the first key was absent a moment ago
  std::atomic<std::uint64_t> probes_late{0};    // not all was known at the deadline
};
static_assert(has_lines_of_its_own<SharedCounters>);

// What the work on one cache's shared tier needs. Thread-safe.
struct SharedContext {
  struct Beyond {
    SharedStore& store;
    BlockPeers* peers = nullptr;  // null: none are asked
    SharedAddress own_address = {};
    WaitGroup& under_way;  // the store and they live until it is empty
    Executor& executor;
  };
  SharedContext(std::shared_ptr<Cache> of, const Beyond& beyond, const SharedEvents& told);

  const std::shared_ptr<Cache> cache;
  SharedStore& store;
  BlockPeers* const peers;
  const SharedAddress own_address;
  WaitGroup& under_way;
  Executor& executor;
  const std::string name_space;
  const std::uint64_t fingerprint;
  const std::string name_prefix;
  const std::uint64_t ttl_ms;  // 0: none
  const SharedEvents events;   // of values
  SharedCounters counters = {};

  std::string name_of(KeyView key) const;
};

// In which namespace the cache's blocks are shared. REQUIRES: it has a shared tier.
const std::string& shared_namespace(const CacheConfig& config);

}  // namespace cairn
