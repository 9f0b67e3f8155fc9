#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/cache_line.hpp"
#include "base/executor.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/core/wait_group.hpp"
#include "blockmgr/remote_tier/remote_events.hpp"
#include "blockmgr/remote_tier/remote_holder.hpp"
#include "blockmgr/remote_tier/remote_value.hpp"
#include "transport/record/medium_codec.hpp"
#include "transport/store/block_peers.hpp"
#include "transport/store/remote_store.hpp"

namespace cairn {

// Counts since the cache was created.
struct alignas(kCacheLineBytes) RemoteCounters {
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
static_assert(has_lines_of_its_own<RemoteCounters>);

// Shared by all work on one cache's shared tier. Thread-safe.
struct RemoteContext {
  struct Beyond {
    RemoteTierConfig config;
    RemoteStore& store;
    RemoteStore* far = nullptr;   // a second store, for what the first lacks
    BlockPeers* peers = nullptr;  // null: fetch no blocks from other servers
    RemoteAddress own_address = {};
    WaitGroup& under_way;  // the store and the peers outlive it until it is empty
    Executor& executor;
  };
  RemoteContext(std::shared_ptr<Cache> of, const Beyond& beyond, const RemoteEvents& remote_events);

  const std::shared_ptr<Cache> cache;
  const RemoteTierConfig config;
  const std::unique_ptr<RemoteStore> both;  // null: one store
  RemoteStore& store;                       // or both
  BlockPeers* const peers;
  const RemoteAddress own_address;
  WaitGroup& under_way;
  Executor& executor;
  const std::string name_space;
  // By KV group.
  const std::vector<std::uint64_t> fingerprints;
  const std::vector<std::string> name_prefixes;
  // Blocks stored at the same time. They are pinned.
  const std::uint32_t max_storing;
  // Blocks that a fetch allocates, fills and commits together.
  const std::uint64_t step_bytes;
  const std::uint64_t step_blocks;
  const RemoteEvents events;  // about values in the store
  RemoteCounters counters = {};
  MediumCodec codec;

  std::string name_of(KeyView key) const;
  std::uint64_t fingerprint_of(const BlockKey& key) const { return fingerprints[key.kv_group()]; }
};

// The highest tier that the CPU reaches: blocks from the store arrive there fastest.
Tier default_tier_of(const Cache& cache);

// The namespace in which the cache shares its blocks. REQUIRES: it has a shared tier.
const std::string& shared_namespace(const CacheConfig& config);

}  // namespace cairn
