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

// Blocks stored at the same time. They are pinned, and a connection takes one at a time.
inline constexpr std::uint32_t kMaxStoring = 4;

// Counts since the cache was created.
struct alignas(kCacheLineBytes) SharedCounters {
  std::atomic<std::uint64_t> fetched_blocks{0};
  std::atomic<std::uint64_t> fetched_bytes{0};
  std::atomic<std::uint64_t> stored_blocks{0};
  std::atomic<std::uint64_t> stored_bytes{0};
  std::atomic<std::uint64_t> there_already{0};   // another server had stored the block
  std::atomic<std::uint64_t> dropped_full{0};    // not stored: queue full, or waited too long
  std::atomic<std::uint64_t> dropped_failed{0};  // not stored: the store failed or refused
  std::atomic<std::uint64_t> absent{0};          // the block was gone when it was fetched
  std::atomic<std::uint64_t> announced{0};       // blocks that this server announced to the store
  std::atomic<std::uint64_t> withdrawn{0};       // blocks that it withdrew
  std::array<std::atomic<std::uint64_t>, kNumWrongValues> wrong{};
  std::atomic<std::uint64_t> probes{0};
  std::atomic<std::uint64_t> probes_spared{0};  // the first key was absent a moment ago
  std::atomic<std::uint64_t> probes_late{0};    // some answers missed the deadline
};
static_assert(has_lines_of_its_own<SharedCounters>);

// Shared by all work on one cache's shared tier. Thread-safe.
struct SharedContext {
  struct Beyond {
    SharedStore& store;
    BlockPeers* peers = nullptr;  // null: fetch no blocks from other servers
    SharedAddress own_address = {};
    WaitGroup& under_way;  // the store and the peers outlive it until it is empty
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
  const SharedEvents events;   // about values in the store
  SharedCounters counters = {};

  std::string name_of(KeyView key) const;
};

// The namespace in which the cache shares its blocks. REQUIRES: it has a shared tier.
const std::string& shared_namespace(const CacheConfig& config);

}  // namespace cairn
