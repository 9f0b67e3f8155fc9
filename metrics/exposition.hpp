#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/histogram.hpp"
#include "blockmgr/collectives/collective_stats.hpp"
#include "blockmgr/engine_memory/engine_memory_types.hpp"
#include "blockmgr/index/stats.hpp"
#include "blockmgr/remote_tier/remote_tier.hpp"
#include "memory/alloc/statistics.hpp"
#include "metrics/http_counters.hpp"
#include "transport/store/block_peers.hpp"
#include "transport/store/remote_store.hpp"
#include "transport/transfer/transfer_scheduler.hpp"

namespace cairn {

struct HttpConnections {
  std::uint64_t open = 0;
  std::uint64_t accepted = 0;
  std::uint64_t refused = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t sent_bytes = 0;
};

// Memory of bodies: when a body had arrived completely, and at its maximum.
struct HttpBodies {
  SizeHistogram::Snapshot current;
  SizeHistogram::Snapshot peak;
};

// For files that are read through a mapping.
struct MappedTotals {
  std::uint64_t mapped_files = 0;
  std::uint64_t files_on_heap = 0;
  std::uint64_t released_bytes = 0;
  std::uint64_t refused_advice = 0;
};

// The shared store and the servers that share it.
struct RemoteStats {
  RemoteStoreStats store;
  BlockPeers::Stats peers;
  std::vector<RemoteTierStats> tiers;
  std::uint64_t missed_events = 0;
  std::uint64_t same_url = 0;  // servers
};

// Spans of traced requests, by what became of them.
struct TraceSpanCounts {
  std::uint64_t exported = 0;
  std::uint64_t dropped = 0;
  std::uint64_t failed = 0;
};

// Everything that a scrape shows, read in advance as plain values.
struct MetricsInput {
  std::string_view version;
  std::string_view runtime;
  std::uint64_t devices = 0;
  std::uint64_t devices_left_out = 0;  // existing devices that did not open
  bool ready = false;
  std::span<const CacheStats> caches;
  CacheTotals totals = {};
  TransferSchedulerStats scheduler;
  std::span<const NamedAllocator> allocators;
  const GroupsStats& groups;
  EngineMemoryStats engine_memories = {};
  const RemoteStats* shared = nullptr;     // null: there is no shared store
  std::uint64_t damaged_descriptions = 0;  // of remembered caches, at the start
  std::uint64_t memory_shortages = 0;      // how often the process ran out of memory
  std::uint64_t log_dropped = 0;           // log lines that nobody read
  std::uint64_t log_left_out = 0;          // log lines above their rate
  TraceSpanCounts trace_spans = {};
  const HttpCounters& http;
  HttpConnections connections;
  HttpBodies bodies = {};
  MappedTotals mapped = {};
};

inline constexpr std::string_view kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

// The Prometheus text. Takes a fraction of a millisecond for a few hundred series: not for a thread
// that serves other requests.
std::string metrics_text(const MetricsInput& input);

}  // namespace cairn
