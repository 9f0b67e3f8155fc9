#include "server/routes/metrics_source.hpp"

#include <optional>

#include "base/version.hpp"
#include "server/http/body_buffer.hpp"
#include "server/routes/readiness.hpp"
#include "server/routes/service.hpp"

namespace cairn {
namespace {

TraceSpanCounts trace_spans(const Service& service) {
  if (service.tracer == nullptr) return {};
  const Tracer::Counts counts = service.tracer->counts();
  return {.exported = counts.exported, .dropped = counts.dropped, .failed = counts.failed};
}

}  // namespace

std::vector<NamedAllocator> allocators_of(const Service& service) {
  std::vector<NamedAllocator> allocators = service.manager.allocators();
  const auto add = [&allocators](std::vector<NamedAllocator> more) {
    for (NamedAllocator& one : more) allocators.push_back(std::move(one));
  };
  add(service.scheduler.allocators());
  if (const http::HttpServer* server = service.http.load()) add(server->allocators());
  return allocators;
}

std::vector<NamedAllocator> pools_of(const Service& service) {
  std::vector<NamedAllocator> pools = allocators_of(service);
  // The memory reserved for tiers is full by design.
  std::erase_if(pools, [](const NamedAllocator& pool) { return pool.allocator == "slots"; });
  for (NamedAllocator& pool : pools) {
    if (pool.now.limit_bytes != 0) continue;
    for (const DeviceInfo& device : service.runtime.devices()) {
      if (std::to_string(device.id) == pool.device) pool.now.limit_bytes = device.total_bytes;
    }
  }
  return pools;
}

std::string collect_metrics(const Service& service) {
  std::vector<CacheStats> caches;
  for (const auto& cache : service.manager.caches()) caches.push_back(cache->stats());
  const http::HttpServerStats http = service.http_stats();
  const std::vector<NamedAllocator> allocators = allocators_of(service);
  const MappedCounts& mapped = service.manager.mapped();
  HttpBodies bodies;
  if (const http::HttpServer* server = service.http.load()) {
    const http::BodyMemory::Sizes sizes = server->bodies().sizes();
    bodies = {.current = sizes.current, .peak = sizes.peak};
  }
  std::optional<RemoteStats> shared;
  if (service.shared != nullptr) {
    shared = RemoteStats{.store = service.shared->store_stats(),
                         .peers = service.shared->peer_stats(),
                         .tiers = service.shared->stats(),
                         .missed_events = service.shared->missed_events(),
                         .same_url = service.shared->same_url().size()};
  }
  return metrics_text(
      {.version = kVersion,
       .runtime = service.runtime.name(),
       .devices = service.runtime.devices().size(),
       .devices_left_out = service.runtime.left_out().size(),
       .ready = check_ready(service.phase, service.runtime, service.unmade).has_value(),
       .caches = caches,
       .totals = service.manager.totals(),
       .scheduler = service.scheduler.stats(),
       .allocators = allocators,
       .groups = service.manager.groups().stats(),
       .engine_memories = service.manager.engine_memories().stats(),
       .shared = shared ? &*shared : nullptr,
       .damaged_descriptions = service.catalog.damaged(),
       .memory_shortages = service.reserve.shortages(),
       .log_dropped = service.log.dropped(),
       .log_left_out = service.log.left_out(),
       .trace_spans = trace_spans(service),
       .http = service.counters,
       .connections = {.open = http.connections_open,
                       .accepted = http.connections_accepted,
                       .refused = http.connections_refused,
                       .received_bytes = http.bytes_received,
                       .sent_bytes = http.bytes_sent},
       .bodies = bodies,
       .mapped = {.mapped_files = mapped.mapped_files,
                  .files_on_heap = mapped.files_on_heap,
                  .released_bytes = mapped.released_bytes,
                  .refused_advice = mapped.refused_advice}});
}

TrafficHistory::Counts traffic_counts(const Service& service) {
  const http::HttpServerStats http = service.http_stats();
  TrafficHistory::Counts counts{.received_bytes = http.bytes_received,
                                .sent_bytes = http.bytes_sent};
  for (const HttpCounters::Count& one : service.counters.counts()) counts.requests += one.requests;
  for (const auto& cache : service.manager.caches()) {
    const CacheStats stats = cache->stats();
    TrafficHistory::CacheCounts& of_cache =
        counts.caches.emplace_back(TrafficHistory::CacheCounts{.id = cache->memory_id()});
    of_cache.found_blocks = stats.remote_hit_blocks;
    for (const TierStats& tier : stats.tiers) of_cache.found_blocks += tier.hit_blocks;
    of_cache.asked_blocks = of_cache.found_blocks + stats.miss_blocks;
    for (std::size_t from = 0; from < kNumTiers; ++from) {
      for (std::size_t to = 0; to < kNumTiers; ++to) {
        of_cache.moved[from][to] = stats.routes[from][to].bytes;
      }
    }
  }
  return counts;
}

}  // namespace cairn
