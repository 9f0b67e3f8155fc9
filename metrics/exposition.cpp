#include "metrics/exposition.hpp"

#include <prometheus/text_serializer.h>

#include <array>
#include <sstream>

#include "metrics/families.hpp"
#include "metrics/parts.hpp"

namespace cairn {
namespace {

using Families = std::vector<prometheus::MetricFamily>;
using Builder = MetricFamilyBuilder;

// One value per cache.
void add_per_cache(Families& out, Builder builder, std::span<const CacheStats> caches,
                   std::uint64_t CacheStats::*value) {
  for (const CacheStats& cache : caches) builder.add({{"cache", cache.name}}, cache.*value);
  out.push_back(std::move(builder).take());
}

// Calls `add(cache, tier's name, stats)` for each tier of each cache.
template <class Add>
void each_tier(std::span<const CacheStats> caches, Add&& add) {
  for (const CacheStats& cache : caches) {
    for (Tier tier : kTiers) {
      const TierStats& stats = cache.tiers[index_of(tier)];
      if (stats.present) add(cache, to_string(tier), stats);
    }
  }
}

void add_blocks(Families& out, std::span<const CacheStats> caches) {
  auto blocks = Builder::gauge({"cairn_blocks", "Blocks of a tier by state."});
  auto capacity =
      Builder::gauge({"cairn_block_capacity", "Number of blocks that fit into a tier."});
  auto populated = Builder::gauge({"cairn_populated_bytes",
                                   "Memory of a tier whose pages are already allocated; rises to "
                                   "the tier's size after the cache is made."});
  auto kv_groups =
      Builder::gauge({"cairn_kv_group_bytes", "Bytes of a KV group's blocks in a tier."});
  auto slabs = Builder::counter({"cairn_kv_group_slabs_moved_total",
                                 "Parts of a tier's memory that went from KV groups with blocks of "
                                 "one size to groups with another."});
  auto leased = Builder::gauge({"cairn_leased_blocks", "Blocks of a tier that leases hold."});
  auto evictions =
      Builder::counter({"cairn_evictions_total", "Blocks that left a tier, by reason."});
  auto pressure = Builder::gauge(
      {"cairn_pressure_level",
       "Share of a tier's slots that cannot be reused at once (neither free nor evictable), as a "
       "level: 0 normal, 1 elevated, 2 warning, 3 critical, 4 out of memory."});
  each_tier(caches, [&](const CacheStats& cache, std::string_view tier, const TierStats& stats) {
    for (std::size_t i = 0; i < kNumSlotStates; ++i) {
      const auto state = to_string(static_cast<SlotState>(i));
      blocks.add({{"cache", cache.name}, {"tier", tier}, {"state", state}}, stats.blocks[i]);
    }
    for (std::size_t i = 0; i < kNumEvictionReasons; ++i) {
      const auto reason = to_string(static_cast<EvictionReason>(i));
      evictions.add({{"cache", cache.name}, {"tier", tier}, {"reason", reason}},
                    stats.evictions[i]);
    }
    capacity.add({{"cache", cache.name}, {"tier", tier}}, stats.capacity_blocks);
    if (stats.populated_bytes) {
      populated.add({{"cache", cache.name}, {"tier", tier}}, *stats.populated_bytes);
    }
    for (const KvGroupStats& group : stats.kv_groups) {
      kv_groups.add({{"cache", cache.name}, {"tier", tier}, {"kv_group", group.name}}, group.bytes);
    }
    if (!stats.kv_groups.empty()) {
      slabs.add({{"cache", cache.name}, {"tier", tier}}, stats.slabs_moved);
    }
    leased.add({{"cache", cache.name}, {"tier", tier}}, stats.leased_blocks);
    pressure.add({{"cache", cache.name}, {"tier", tier}},
                 static_cast<std::uint64_t>(stats.pressure));
  });
  for (Builder* builder :
       {&blocks, &capacity, &populated, &kv_groups, &slabs, &leased, &evictions, &pressure}) {
    out.push_back(std::move(*builder).take());
  }
}

void add_matches(Families& out, std::span<const CacheStats> caches) {
  add_per_cache(out, Builder::counter({"cairn_matches_total", "Prefix lookups."}), caches,
                &CacheStats::matches);
  auto blocks = Builder::counter(
      {"cairn_match_blocks_total",
       "Keys asked for in prefix lookups, by the tier that held them; misses included."});
  each_tier(caches, [&](const CacheStats& cache, std::string_view tier, const TierStats& stats) {
    blocks.add({{"cache", cache.name}, {"result", tier}}, stats.hit_blocks);
  });
  for (const CacheStats& cache : caches) {
    if (cache.has_remote_tier) {
      blocks.add({{"cache", cache.name}, {"result", "shared"}}, cache.remote_hit_blocks);
    }
    blocks.add({{"cache", cache.name}, {"result", "miss"}}, cache.miss_blocks);
  }
  out.push_back(std::move(blocks).take());

  auto commits = Builder::counter(
      {"cairn_commits_total", "Commits of blocks, by result: committed, or a duplicate."});
  for (const CacheStats& cache : caches) {
    commits.add({{"cache", cache.name}, {"result", "committed"}}, cache.commits);
    commits.add({{"cache", cache.name}, {"result", "duplicate"}}, cache.duplicates);
  }
  out.push_back(std::move(commits).take());
}

void add_hints(Families& out, std::span<const CacheStats> caches) {
  auto hints = Builder::counter(
      {"cairn_hints_total", "Requests with a hint about the next use of their blocks, by hint."});
  for (const CacheStats& cache : caches) {
    using enum ReuseHint::Kind;
    for (const auto kind : {never, soon, later, within}) {
      hints.add({{"cache", cache.name}, {"reuse", to_string(kind)}},
                cache.hints[static_cast<std::size_t>(kind)]);
    }
  }
  out.push_back(std::move(hints).take());
}

void add_leases(Families& out, std::span<const CacheStats> caches) {
  add_per_cache(out, Builder::gauge({"cairn_leases", "Open leases."}), caches, &CacheStats::leases);
  add_per_cache(
      out, Builder::counter({"cairn_lease_expirations_total", "Leases that expired unreleased."}),
      caches, &CacheStats::lease_expirations);
  add_per_cache(out,
                Builder::gauge({"cairn_metadata_bytes",
                                "Memory of the index, the slot records and the histories."}),
                caches, &CacheStats::metadata_bytes);
  add_per_cache(
      out,
      Builder::gauge({"cairn_history_bytes",
                      "Memory in which the order of eviction remembers past use of blocks."}),
      caches, &CacheStats::history_bytes);
  add_per_cache(out,
                Builder::gauge({"cairn_remembered_blocks",
                                "Evicted blocks whose past use is still known if they come back."}),
                caches, &CacheStats::remembered_blocks);
}

void add_actions(Families& out, std::span<const CacheStats> caches) {
  add_per_cache(out, Builder::gauge({"cairn_pins", "Pins of clients that keep blocks."}), caches,
                &CacheStats::pins);
  auto pinned = Builder::gauge(
      {"cairn_pinned_by_pins_blocks", "Blocks of a tier that clients' pins keep from eviction."});
  each_tier(caches, [&](const CacheStats& cache, std::string_view tier, const TierStats& stats) {
    pinned.add({{"cache", cache.name}, {"tier", tier}}, stats.protected_blocks);
  });
  out.push_back(std::move(pinned).take());

  auto actions =
      Builder::counter({"cairn_actions_total", "Actions that clients asked for, by outcome."});
  auto prefetched =
      Builder::counter({"cairn_prefetch_blocks_total",
                        "Blocks that clients asked to bring up before their request, by what "
                        "became of them."});
  for (const CacheStats& cache : caches) {
    for (std::size_t type = 0; type < kNumActionTypes; ++type) {
      for (std::size_t i = 0; i < kNumActionOutcomes; ++i) {
        actions.add({{"cache", cache.name},
                     {"type", to_string(static_cast<ActionType>(type))},
                     {"outcome", to_string(static_cast<ActionOutcome>(i))}},
                    cache.actions[type][i]);
      }
    }
    for (std::size_t i = 0; i < kNumPrefetchResults; ++i) {
      prefetched.add({{"cache", cache.name}, {"result", to_string(static_cast<PrefetchResult>(i))}},
                     cache.prefetched[i]);
    }
  }
  out.push_back(std::move(actions).take());
  out.push_back(std::move(prefetched).take());
}

void add_reuse(Families& out, std::span<const CacheStats> caches) {
  auto curve =
      Builder::gauge({"cairn_miss_ratio_curve",
                      "Share of recently requested blocks that LRU would miss in a cache of the "
                      "given multiple of the size. Absent before the first request."});
  add_per_cache(out,
                Builder::gauge({"cairn_eviction_follows_lru",
                                "1 while the cache follows LRU because the configured order of "
                                "eviction did worse recently."}),
                caches, &CacheStats::follows_lru);
  add_per_cache(out,
                Builder::counter({"cairn_eviction_changes_total",
                                  "Switches between LRU and the configured order of eviction."}),
                caches, &CacheStats::order_changes);
  constexpr std::array<std::string_view, kCurveRatios.size()> kRatios = {"0.25", "0.5", "1", "2",
                                                                         "4"};
  for (const CacheStats& cache : caches) {
    if (cache.requests_followed == 0) continue;
    for (std::size_t i = 0; i < kRatios.size(); ++i) {
      curve.add({{"cache", cache.name}, {"capacity_ratio", kRatios[i]}}, cache.miss_ratio_curve[i]);
    }
  }
  out.push_back(std::move(curve).take());
}

void add_lock_holds(Families& out, std::span<const CacheStats> caches) {
  auto holds = Builder::histogram({"cairn_lock_hold_seconds",
                                   "How long a cache's lock was held at a time, by operation. The "
                                   "cache does nothing else meanwhile."});
  for (const CacheStats& cache : caches) {
    for (const LockUse use : kLockUses) {
      holds.add({{"cache", cache.name}, {"verb", to_string(use)}}, cache.lock_holds.of(use));
    }
  }
  out.push_back(std::move(holds).take());
}

void add_cache_transfers(Families& out, std::span<const CacheStats> caches) {
  auto transfers =
      Builder::counter({"cairn_transfers_total", "Blocks moved between two tiers, by outcome."});
  auto bytes = Builder::counter({"cairn_transfer_bytes_total", "Bytes moved between two tiers."});
  for (const CacheStats& cache : caches) {
    for (Tier from : kTiers) {
      for (Tier to : kTiers) {
        if (from == to || !cache.tiers[index_of(from)].present ||
            !cache.tiers[index_of(to)].present) {
          continue;
        }
        const RouteStats& route = cache.routes[index_of(from)][index_of(to)];
        for (std::size_t i = 0; i < kNumTransferOutcomes; ++i) {
          transfers.add({{"cache", cache.name},
                         {"from", to_string(from)},
                         {"to", to_string(to)},
                         {"outcome", to_string(static_cast<TransferOutcome>(i))}},
                        route.blocks[i]);
        }
        bytes.add({{"cache", cache.name}, {"from", to_string(from)}, {"to", to_string(to)}},
                  route.bytes);
      }
    }
  }
  out.push_back(std::move(transfers).take());
  out.push_back(std::move(bytes).take());
}

void add_all_transfers(Families& out, const MetricsInput& input) {
  auto durations = Builder::histogram(
      {"cairn_transfer_duration_seconds", "How long transfers between two tiers took."});
  auto in_flight =
      Builder::gauge({"cairn_transfers_in_flight", "Blocks being moved between two tiers."});
  for (Tier from : kTiers) {
    for (Tier to : kTiers) {
      if (from == to) continue;
      std::uint64_t moving = 0;
      for (const CacheStats& cache : input.caches) {
        moving += cache.routes[index_of(from)][index_of(to)].in_flight_blocks;
      }
      durations.add({{"from", to_string(from)}, {"to", to_string(to)}},
                    input.totals.durations[index_of(from)][index_of(to)]);
      in_flight.add({{"from", to_string(from)}, {"to", to_string(to)}}, moving);
    }
  }
  out.push_back(std::move(durations).take());
  out.push_back(std::move(in_flight).take());

  auto queue = Builder::gauge(
      {"cairn_transfer_queue_depth", "Jobs of the transfer scheduler that have not begun."});
  queue.add({}, input.scheduler.queued);
  out.push_back(std::move(queue).take());
  auto jobs =
      Builder::counter({"cairn_transfer_jobs_total", "Jobs of the transfer scheduler by outcome."});
  jobs.add({{"outcome", "done"}}, input.scheduler.done);
  jobs.add({{"outcome", "failed"}}, input.scheduler.failed);
  jobs.add({{"outcome", "cancelled"}}, input.scheduler.cancelled);
  jobs.add({{"outcome", "rejected"}}, input.scheduler.rejected);
  out.push_back(std::move(jobs).take());

  auto strategies = Builder::counter(
      {"cairn_transfer_strategy_total",
       "Jobs that copied bytes, by the kinds of memory and by how their end was detected."});
  for (const TransferSchedulerStats::Copied& copied : input.scheduler.copied) {
    strategies.add({{"from", to_string(copied.from)},
                    {"to", to_string(copied.to)},
                    {"strategy", to_string(copied.strategy)}},
                   copied.jobs);
  }
  out.push_back(std::move(strategies).take());
  auto prefetched =
      Builder::counter({"cairn_unified_prefetch_bytes_total",
                        "Bytes of unified memory sent to the device or to the host."});
  prefetched.add({{"to", "device"}}, input.scheduler.prefetched_to_device_bytes);
  prefetched.add({{"to", "host"}}, input.scheduler.prefetched_to_host_bytes);
  out.push_back(std::move(prefetched).take());
}

void add_checksums(Families& out, const CacheTotals& totals) {
  auto failures =
      Builder::counter({"cairn_checksum_failures_total", "Blocks with a wrong checksum."});
  for (Tier tier : kTiers) {
    failures.add({{"tier", to_string(tier)}}, totals.checksum_failures[index_of(tier)]);
  }
  out.push_back(std::move(failures).take());
}

void add_damage(Families& out, const MetricsInput& input) {
  auto damage =
      Builder::counter({"cairn_disk_damage_total",
                        "Parts of the data directory found damaged at the start, by part."});
  const DiskDamageStats& all = input.totals.disk_damage;
  damage.add({{"part", "description"}}, input.damaged_descriptions);
  damage.add({{"part", "slot_file"}}, all.slot_files);
  damage.add({{"part", "index"}}, all.indexes);
  damage.add({{"part", "header"}}, all.headers);
  out.push_back(std::move(damage).take());
}

void add_disk(Families& out, std::span<const CacheStats> caches) {
  auto admissions =
      Builder::counter({"cairn_disk_admissions_total",
                        "Blocks leaving memory, by whether they were written to disk."});
  auto full =
      Builder::counter({"cairn_disk_full_total", "Blocks not written to disk because it is full."});
  auto scrubbed = Builder::counter({"cairn_disk_scrub_blocks_total",
                                    "Blocks on disk that the scrub compared with their checksum."});
  auto scrubbed_bytes =
      Builder::counter({"cairn_disk_scrub_bytes_total", "Bytes that the scrub compared."});
  auto wrong = Builder::counter(
      {"cairn_disk_scrub_wrong_blocks_total", "Blocks that the scrub found wrong and dropped."});
  auto passes = Builder::counter(
      {"cairn_disk_scrub_passes_total", "How often the scrub finished a disk tier."});
  for (const CacheStats& cache : caches) {
    if (!cache.tiers[index_of(Tier::disk)].present) continue;
    scrubbed.add({{"cache", cache.name}}, cache.disk_scrub.blocks);
    scrubbed_bytes.add({{"cache", cache.name}}, cache.disk_scrub.bytes);
    wrong.add({{"cache", cache.name}}, cache.disk_scrub.wrong);
    passes.add({{"cache", cache.name}}, cache.disk_scrub.passes);
    const DiskAdmissionStats& stats = cache.disk_admission;
    admissions.add({{"cache", cache.name}, {"result", "admitted"}}, stats.admitted);
    admissions.add({{"cache", cache.name}, {"result", "rejected"}}, stats.rejected);
    admissions.add({{"cache", cache.name}, {"result", "throttled"}}, stats.throttled);
    full.add({{"cache", cache.name}}, cache.disk_full);
  }
  for (Builder* builder : {&admissions, &full, &scrubbed, &scrubbed_bytes, &wrong, &passes}) {
    out.push_back(std::move(*builder).take());
  }
}

void add_mapped(Families& out, const MappedTotals& totals) {
  auto files = Builder::counter(
      {"cairn_mapped_files_total", "Snapshot and index files read, by where they were."});
  files.add({{"memory", "mapped"}}, totals.mapped_files);
  files.add({{"memory", "heap"}}, totals.files_on_heap);
  auto released = Builder::counter(
      {"cairn_mapped_released_bytes_total", "Bytes of mapped files released after reading."});
  released.add({}, totals.released_bytes);
  auto refused = Builder::counter(
      {"cairn_mapped_advice_refused_total", "Advice on mapped files that the system refused."});
  refused.add({}, totals.refused_advice);
  for (Builder* builder : {&files, &released, &refused}) {
    out.push_back(std::move(*builder).take());
  }
}

void add_http(Families& out, const MetricsInput& input) {
  auto requests = Builder::counter(
      {"cairn_http_requests_total", "Requests served, by route, method and status."});
  for (const HttpCounters::Count& count : input.http.counts()) {
    const std::string code = count.status == 0 ? "other" : std::to_string(count.status);
    requests.add({{"route", count.route}, {"method", count.method}, {"code", code}},
                 count.requests);
  }
  out.push_back(std::move(requests).take());

  auto durations =
      Builder::histogram({"cairn_http_request_duration_seconds",
                          "Time from a request's first byte to its response's last, by route."});
  const auto routes = input.http.routes();
  for (std::size_t i = 0; i < routes.size(); ++i) {
    durations.add({{"route", routes[i]}}, input.http.durations(i));
  }
  out.push_back(std::move(durations).take());

  const auto single = [&out](Builder builder, const auto& value) {
    builder.add({}, value);
    out.push_back(std::move(builder).take());
  };
  single(
      Builder::histogram(
          {"cairn_http_body_bytes",
           "Memory of a body that was not read together with its head, while it was processed."}),
      input.bodies.current);
  single(Builder::histogram(
             {"cairn_http_body_peak_bytes", "Highest memory of such a body while it arrived."}),
         input.bodies.peak);
  const HttpConnections& connections = input.connections;
  single(Builder::gauge({"cairn_http_connections", "Open connections."}), connections.open);
  single(Builder::counter({"cairn_http_connections_total", "Connections accepted."}),
         connections.accepted);
  single(Builder::counter({"cairn_http_connections_refused_total",
                           "Connections refused because too many were open."}),
         connections.refused);
  single(Builder::counter({"cairn_http_received_bytes_total", "Bytes received from clients."}),
         connections.received_bytes);
  single(Builder::counter({"cairn_http_sent_bytes_total", "Bytes sent to clients."}),
         connections.sent_bytes);
}

}  // namespace

std::string metrics_text(const MetricsInput& input) {
  Families families;
  auto build = Builder::gauge(
      {"cairn_build_info", "Always 1; the labels show the version and the runtime."});
  build.add({{"version", input.version}, {"runtime", input.runtime}}, 1.0);
  families.push_back(std::move(build).take());
  auto ready = Builder::gauge({"cairn_ready", "1 if /readyz returns 200, else 0."});
  ready.add({}, std::uint64_t{input.ready});
  families.push_back(std::move(ready).take());
  auto devices =
      Builder::gauge({"cairn_devices", "Devices of the runtime, by state: in use, or not opened."});
  devices.add({{"state", "open"}}, input.devices);
  devices.add({{"state", "left_out"}}, input.devices_left_out);
  families.push_back(std::move(devices).take());
  add_blocks(families, input.caches);
  add_matches(families, input.caches);
  add_hints(families, input.caches);
  add_leases(families, input.caches);
  add_cache_transfers(families, input.caches);
  add_reuse(families, input.caches);
  add_actions(families, input.caches);
  add_lock_holds(families, input.caches);
  add_all_transfers(families, input);
  add_checksums(families, input.totals);
  add_allocators(families, input.allocators);
  add_disk(families, input.caches);
  add_damage(families, input);
  auto shortages = Builder::counter(
      {"cairn_memory_shortages_total",
       "How often the process ran out of memory and refused new work until it had some again."});
  shortages.add({}, input.memory_shortages);
  families.push_back(std::move(shortages).take());
  auto dropped = Builder::counter(
      {"cairn_log_dropped_total",
       "Log lines lost because nobody read them in time or they could not be written."});
  dropped.add({}, input.log_dropped);
  families.push_back(std::move(dropped).take());
  auto left_out = Builder::counter(
      {"cairn_log_left_out_total",
       "Log lines left out because too many came for one reason; a log line says how many."});
  left_out.add({}, input.log_left_out);
  families.push_back(std::move(left_out).take());
  auto spans = Builder::counter(
      {"cairn_trace_spans_total",
       "Spans of traced requests: exported, dropped because too many waited, or failed because the "
       "collector did not take them."});
  spans.add({{"result", "exported"}}, input.trace_spans.exported);
  spans.add({{"result", "dropped"}}, input.trace_spans.dropped);
  spans.add({{"result", "failed"}}, input.trace_spans.failed);
  families.push_back(std::move(spans).take());
  add_groups(families, input.groups);
  add_engine_memories(families, input.engine_memories);
  add_mapped(families, input.mapped);
  if (input.shared != nullptr) add_remote(families, *input.shared);
  add_codecs(families, input);
  add_http(families, input);

  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return std::move(out).str();
}

}  // namespace cairn
