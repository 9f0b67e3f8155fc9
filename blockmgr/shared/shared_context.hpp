#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "blockmgr/cache/cache.hpp"
#include "blockmgr/cache/wait_group.hpp"
#include "blockmgr/shared/shared_value.hpp"
#include "transport/store/shared_store.hpp"

namespace cairn {

// What was done since the cache was made.
struct SharedCounters {
  std::atomic<std::uint64_t> fetched_blocks{0};
  std::atomic<std::uint64_t> fetched_bytes{0};
  std::atomic<std::uint64_t> stored_blocks{0};
  std::atomic<std::uint64_t> stored_bytes{0};
  std::atomic<std::uint64_t> there_already{0};   // blocks that another server had stored
  std::atomic<std::uint64_t> dropped_full{0};    // not stored: too many waited
  std::atomic<std::uint64_t> dropped_failed{0};  // not stored: the store did not take it
  std::atomic<std::uint64_t> absent{0};          // gone between the look and the fetch
  std::array<std::atomic<std::uint64_t>, kNumWrongValues> wrong{};
  std::atomic<std::uint64_t> probes{0};
  std::atomic<std::uint64_t> probes_spared{0};  // the first key was absent a moment ago
  std::atomic<std::uint64_t> probes_late{0};    // not all was known at the deadline
};

// What the work on one cache's shared tier needs. Thread-safe.
struct SharedContext {
  SharedContext(std::shared_ptr<Cache> of, SharedStore& in, WaitGroup& work);

  const std::shared_ptr<Cache> cache;
  SharedStore& store;
  WaitGroup& under_way;  // the store lives until it is empty
  const std::uint64_t fingerprint;
  const std::string name_prefix;
  const std::uint64_t ttl_ms;  // 0: none
  SharedCounters counters = {};

  std::string name_of(KeyView key) const;
};

// XXH3 of pieces one after the other.
std::uint64_t checksum_of(std::span<const iovec> pieces);

}  // namespace cairn
