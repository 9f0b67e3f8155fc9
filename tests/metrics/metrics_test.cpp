#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "metrics/exposition.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn {
namespace {

using ::testing::Contains;
using ::testing::Not;

constexpr std::string_view kRoutes[] = {"/v1/caches/{cache}/match", "none"};
constexpr std::string_view kMethods[] = {"GET", "POST"};

// A cache with a device and a disk tier, in which all numbers differ.
CacheStats sample_cache() {
  CacheStats cache;
  cache.name = "llama";
  cache.matches = 3;
  cache.miss_blocks = 4;
  cache.leases = 5;
  cache.lease_expirations = 6;
  cache.commits = 7;
  cache.duplicates = 8;
  cache.hints = {0, 22, 23, 24, 25};
  cache.metadata_bytes = 9;
  cache.history_bytes = 19;
  cache.remembered_blocks = 20;
  cache.requests_followed = 21;
  cache.follows_lru = 1;
  cache.order_changes = 26;
  cache.miss_ratio_curve = {0.875, 0.75, 0.5, 0.25, 0.125};
  cache.disk_admission = {.admitted = 11, .rejected = 12, .throttled = 13};
  cache.disk_full = 14;
  cache.disk_scrub = {.blocks = 15, .bytes = 16, .wrong = 17, .passes = 18};
  for (Tier tier : {Tier::device, Tier::disk}) {
    TierStats& stats = cache.tiers[index_of(tier)];
    const std::uint64_t base = tier == Tier::device ? 100 : 200;
    stats.present = true;
    stats.capacity_blocks = base;
    for (std::size_t i = 0; i < kNumSlotStates; ++i) stats.blocks[i] = base + 1 + i;
    stats.leased_blocks = base + 10;
    stats.hit_blocks = base + 11;
    for (std::size_t i = 0; i < kNumEvictionReasons; ++i) stats.evictions[i] = base + 20 + i;
    stats.pressure = PressureLevel::critical;
  }
  RouteStats& route = cache.routes[index_of(Tier::device)][index_of(Tier::disk)];
  route.blocks = {301, 302, 303};
  route.bytes = 304;
  route.in_flight_blocks = 305;
  return cache;
}

// Totals also count dropped caches, so no number equals one of the sample cache.
CacheTotals sample_totals() {
  CacheTotals totals{.disk_damage = {.slot_files = 311, .indexes = 312, .headers = 313}};
  totals.checksum_failures[index_of(Tier::device)] = 130;
  DurationHistogram::Snapshot& down =
      totals.durations[index_of(Tier::device)][index_of(Tier::disk)];
  down.counts[0] = 2;   // up to 10 µs
  down.counts[1] = 3;   // up to 25 µs
  down.counts[19] = 1;  // longer than all bounds
  down.sum = 1'500'000;
  return totals;
}

GroupsStats sample_groups() {
  GroupsStats stats{.groups = {401, 402, 403},
                    .ranks = {411, 412, 413},
                    .failures = 421,
                    .queued_operations = 422};
  CollectiveKindStats& broadcast = stats.kinds[static_cast<std::size_t>(CollectiveKind::broadcast)];
  broadcast = {.operations = {431, 432, 433},
               .sent_blocks = 441,
               .sent_bytes = 442,
               .received_blocks = 443,
               .received_bytes = 444,
               .durations = {}};
  broadcast.durations.counts[2] = 451;
  return stats;
}

class MetricsText : public ::testing::Test {
 protected:
  MetricsText() {
    http_.record({.route = 0, .method = 1, .status = 200, .duration_us = 12});
    http_.record({.route = 0, .method = 1, .status = 200, .duration_us = 12});
    http_.record({.route = 1, .method = 0, .status = 404, .duration_us = 1});
    http_.record({.route = 1, .method = 0, .status = 418, .duration_us = 1});
    const CacheStats cache = sample_cache();
    const NamedAllocator allocators[] = {
        {"slots", "0", {.allocated_bytes = 61, .cached_bytes = 8, .reserved_bytes = 69}},
        {"transfer_staging",
         "host",
         {.allocated_bytes = 71,
          .cached_bytes = 8,
          .reserved_bytes = 79,
          .pending_bytes = 4,
          .peak_allocated_bytes = 72,
          .largest_free_bytes = 1,
          .allocations = 73,
          .frees = 74,
          .cache_hits = 75,
          .cache_misses = 76,
          .retries = 80,
          .splits = 77,
          .merges = 78,
          .typed_allocations = 81,
          .typed_objects = 82},
         {{.buffer_bytes = 256,
           .in_use = 83,
           .hits = 84,
           .misses = 85,
           .upgrades = 86,
           .downgrades = 87}}}};
    text_ = metrics_text(
        {.version = "1.2.3",
         .runtime = "host",
         .devices = 3,
         .devices_left_out = 2,
         .ready = true,
         .caches = {&cache, 1},
         .totals = sample_totals(),
         .scheduler = {.queued = 41,
                       .done = 42,
                       .copied = {{.from = StorageKind::pinned,
                                   .to = StorageKind::unified,
                                   .strategy = CopyStrategy::polling,
                                   .jobs = 43}},
                       .prefetched_to_device_bytes = 44,
                       .prefetched_to_host_bytes = 45},
         .allocators = allocators,
         .groups = sample_groups(),
         .engine_memories = {.engine_memories = 501,
                             .loads = {.done_blocks = 502, .failed_blocks = 503, .bytes = 504},
                             .stores = {.done_blocks = 505, .failed_blocks = 506, .bytes = 507}},
         .http = http_,
         .connections = {.open = 51, .accepted = 52},
         .bodies = {.current = {.counts = {1, 2}, .sum = 53},
                    .peak = {.counts = {0, 0, 3}, .sum = 54}},
         .mapped = {
             .mapped_files = 91, .files_on_heap = 92, .released_bytes = 93, .refused_advice = 94}});
    std::istringstream in(text_);
    for (std::string line; std::getline(in, line);) lines_.push_back(line);
  }

  HttpCounters http_{kRoutes, kMethods};
  std::string text_;
  std::vector<std::string> lines_;
};

TEST_F(MetricsText, HasTheSeriesThatDashboardsUse) {
  for (
      const char* line : {
          R"(cairn_build_info{version="1.2.3",runtime="host"} 1)",
          R"(cairn_ready 1)",
          R"(cairn_devices{state="open"} 3)",
          R"(cairn_devices{state="left_out"} 2)",
          R"(cairn_transfer_strategy_total{from="pinned",to="unified",strategy="polling"} 43)",
          R"(cairn_unified_prefetch_bytes_total{to="device"} 44)",
          R"(cairn_unified_prefetch_bytes_total{to="host"} 45)",
          R"(cairn_allocator_cached_bytes{allocator="transfer_staging",device="host"} 8)",
          R"(cairn_allocator_pending_bytes{allocator="transfer_staging",device="host"} 4)",
          R"(cairn_allocator_retries_total{allocator="transfer_staging",device="host"} 80)",
          R"(cairn_blocks{cache="llama",tier="device",state="free"} 101)",
          R"(cairn_blocks{cache="llama",tier="device",state="allocated"} 102)",
          R"(cairn_blocks{cache="llama",tier="disk",state="committed"} 203)",
          R"(cairn_blocks{cache="llama",tier="disk",state="evictable"} 204)",
          R"(cairn_block_capacity{cache="llama",tier="disk"} 200)",
          R"(cairn_match_blocks_total{cache="llama",result="device"} 111)",
          R"(cairn_match_blocks_total{cache="llama",result="disk"} 211)",
          R"(cairn_match_blocks_total{cache="llama",result="miss"} 4)",
          R"(cairn_evictions_total{cache="llama",tier="device",reason="capacity"} 120)",
          R"(cairn_evictions_total{cache="llama",tier="device",reason="pressure"} 121)",
          R"(cairn_evictions_total{cache="llama",tier="device",reason="request"} 122)",
          R"(cairn_evictions_total{cache="llama",tier="device",reason="expired"} 123)",
          R"(cairn_evictions_total{cache="llama",tier="device",reason="io_error"} 124)",
          R"(cairn_transfers_total{cache="llama",from="device",to="disk",outcome="done"} 301)",
          R"(cairn_transfers_total{cache="llama",from="device",to="disk",outcome="failed"} 302)",
          R"(cairn_transfers_total{cache="llama",from="device",to="disk",outcome="cancelled"} 303)",
          R"(cairn_transfer_bytes_total{cache="llama",from="device",to="disk"} 304)",
          R"(cairn_transfers_in_flight{from="device",to="disk"} 305)",
          R"(cairn_transfer_queue_depth 41)",
          R"(cairn_leases{cache="llama"} 5)",
          R"(cairn_leased_blocks{cache="llama",tier="device"} 110)",
          R"(cairn_lease_expirations_total{cache="llama"} 6)",
          R"(cairn_eviction_follows_lru{cache="llama"} 1)",
          R"(cairn_eviction_changes_total{cache="llama"} 26)",
          R"(cairn_hints_total{cache="llama",reuse="never"} 22)",
          R"(cairn_hints_total{cache="llama",reuse="within"} 25)",
          R"(cairn_pressure_level{cache="llama",tier="device"} 3)",
          R"(cairn_http_requests_total{route="/v1/caches/{cache}/match",method="POST",code="200"} 2)",
          R"(cairn_http_requests_total{route="none",method="GET",code="404"} 1)",
          R"(cairn_http_requests_total{route="none",method="GET",code="other"} 1)",
          R"(cairn_allocator_allocated_bytes{allocator="slots",device="0"} 61)",
          R"(cairn_allocator_allocated_bytes{allocator="transfer_staging",device="host"} 71)",
          R"(cairn_allocator_reserved_bytes{allocator="transfer_staging",device="host"} 79)",
          R"(cairn_allocator_peak_allocated_bytes{allocator="transfer_staging",device="host"} 72)",
          R"(cairn_allocator_largest_free_bytes{allocator="transfer_staging",device="host"} 1)",
          R"(cairn_allocator_fragmentation_ratio{allocator="transfer_staging",device="host"} 0.75)",
          R"(cairn_allocator_allocations_total{allocator="transfer_staging",device="host"} 73)",
          R"(cairn_allocator_frees_total{allocator="transfer_staging",device="host"} 74)",
          R"(cairn_allocator_cache_hits_total{allocator="transfer_staging",device="host"} 75)",
          R"(cairn_allocator_cache_misses_total{allocator="transfer_staging",device="host"} 76)",
          R"(cairn_allocator_splits_total{allocator="transfer_staging",device="host"} 77)",
          R"(cairn_allocator_merges_total{allocator="transfer_staging",device="host"} 78)",
          R"(cairn_allocator_typed_allocations_total{allocator="transfer_staging",device="host"} 81)",
          R"(cairn_allocator_typed_objects_total{allocator="transfer_staging",device="host"} 82)",
          R"(cairn_allocator_bucket_in_use{allocator="transfer_staging",device="host",bucket_bytes="256"} 83)",
          R"(cairn_allocator_bucket_hits_total{allocator="transfer_staging",device="host",bucket_bytes="256"} 84)",
          R"(cairn_allocator_bucket_misses_total{allocator="transfer_staging",device="host",bucket_bytes="256"} 85)",
          R"(cairn_allocator_bucket_upgrades_total{allocator="transfer_staging",device="host",bucket_bytes="256"} 86)",
          R"(cairn_allocator_bucket_downgrades_total{allocator="transfer_staging",device="host",bucket_bytes="256"} 87)",
          R"(cairn_mapped_files_total{memory="mapped"} 91)",
          R"(cairn_mapped_files_total{memory="heap"} 92)",
          R"(cairn_mapped_released_bytes_total 93)",
          R"(cairn_mapped_advice_refused_total 94)",
          R"(cairn_http_body_bytes_bucket{le="1024"} 3)",
          R"(cairn_http_body_bytes_sum 53)",
          R"(cairn_http_body_peak_bytes_bucket{le="1024"} 0)",
          R"(cairn_http_body_peak_bytes_count 3)",
          R"(cairn_checksum_failures_total{tier="device"} 130)",
          R"(cairn_checksum_failures_total{tier="pinned"} 0)",
          R"(cairn_disk_damage_total{part="slot_file"} 311)",
          R"(cairn_disk_damage_total{part="index"} 312)",
          R"(cairn_disk_damage_total{part="header"} 313)",
          R"(cairn_disk_admissions_total{cache="llama",result="admitted"} 11)",
          R"(cairn_disk_admissions_total{cache="llama",result="rejected"} 12)",
          R"(cairn_disk_admissions_total{cache="llama",result="throttled"} 13)",
          R"(cairn_disk_full_total{cache="llama"} 14)",
          R"(cairn_disk_scrub_blocks_total{cache="llama"} 15)",
          R"(cairn_disk_scrub_bytes_total{cache="llama"} 16)",
          R"(cairn_disk_scrub_wrong_blocks_total{cache="llama"} 17)",
          R"(cairn_disk_scrub_passes_total{cache="llama"} 18)",
          R"(cairn_agents 501)",
          R"(cairn_agent_blocks_total{direction="load",outcome="done"} 502)",
          R"(cairn_agent_blocks_total{direction="load",outcome="failed"} 503)",
          R"(cairn_agent_bytes_total{direction="load"} 504)",
          R"(cairn_agent_blocks_total{direction="store",outcome="done"} 505)",
          R"(cairn_agent_blocks_total{direction="store",outcome="failed"} 506)",
          R"(cairn_agent_bytes_total{direction="store"} 507)",
          R"(cairn_groups{state="joining"} 401)",
          R"(cairn_groups{state="ready"} 402)",
          R"(cairn_groups{state="failed"} 403)",
          R"(cairn_group_ranks{state="ready"} 412)",
          R"(cairn_group_failures_total 421)",
          R"(cairn_collective_queue_depth 422)",
          R"(cairn_collective_operations_total{kind="broadcast",outcome="done"} 431)",
          R"(cairn_collective_operations_total{kind="broadcast",outcome="failed"} 432)",
          R"(cairn_collective_operations_total{kind="broadcast",outcome="cancelled"} 433)",
          R"(cairn_collective_operations_total{kind="agree",outcome="done"} 0)",
          R"(cairn_collective_blocks_total{kind="broadcast",direction="sent"} 441)",
          R"(cairn_collective_blocks_total{kind="broadcast",direction="received"} 443)",
          R"(cairn_collective_bytes_total{kind="broadcast",direction="sent"} 442)",
          R"(cairn_collective_bytes_total{kind="broadcast",direction="received"} 444)",
          R"(cairn_collective_duration_seconds_bucket{kind="broadcast",le="5e-05"} 451)",
          R"(cairn_collective_duration_seconds_count{kind="broadcast"} 451)",
      }) {
    EXPECT_THAT(lines_, Contains(line));
  }
}

TEST_F(MetricsText, LeavesOutTiersThatACacheLacks) {
  EXPECT_EQ(text_.find("cache=\"llama\",tier=\"pinned\""), std::string::npos);
  EXPECT_EQ(text_.find("cache=\"llama\",from=\"pinned\""), std::string::npos);
}

TEST_F(MetricsText, HistogramsAreCumulativeAndInSeconds) {
  const std::string name = R"(cairn_transfer_duration_seconds)";
  const std::string labels = R"({from="device",to="disk")";
  EXPECT_THAT(lines_, Contains(name + "_bucket" + labels + R"(,le="1e-05"} 2)"));
  EXPECT_THAT(lines_, Contains(name + "_bucket" + labels + R"(,le="10"} 5)"));
  EXPECT_THAT(lines_, Contains(name + "_bucket" + labels + R"(,le="+Inf"} 6)"));
  EXPECT_THAT(lines_, Contains(name + "_count" + labels + "} 6"));
  EXPECT_THAT(lines_, Contains(name + "_sum" + labels + "} 1.5"));
  EXPECT_THAT(
      lines_,
      Contains(R"(cairn_http_request_duration_seconds_count{route="/v1/caches/{cache}/match"} 2)"));
}

// Other servers choose the names of a shared store's nodes.
TEST(MetricsLabels, ArePrintableBoundedAndDistinct) {
  const auto labels_of = [](const std::vector<std::string>& servers) {
    RemoteStats shared;
    for (const std::string& server : servers) {
      NodeDurations::OfNode node{.node = server, .operations = {}};
      node.operations[static_cast<std::size_t>(StoreOperation::read)].counts[0] = 1;
      shared.peers.by_server.push_back(node);
    }
    const HttpCounters http(kRoutes, kMethods);
    const GroupsStats groups;
    std::istringstream in(metrics_text({.version = "1",
                                        .runtime = "host",
                                        .caches = {},
                                        .scheduler = {},
                                        .allocators = {},
                                        .groups = groups,
                                        .shared = &shared,
                                        .http = http,
                                        .connections = {}}));
    std::vector<std::string> labels;
    constexpr std::string_view kStart = "cairn_shared_node_request_duration_seconds_sum{node=\"";
    for (std::string line; std::getline(in, line);) {
      if (!line.starts_with(kStart)) continue;
      line.erase(0, kStart.size());
      labels.push_back(line.substr(0, line.rfind("\",operation")));
    }
    return labels;
  };
  const std::string longest_name = "http://" + std::string(253, 'a') + ":65535";
  const std::vector<std::string> usual = {"10.0.0.7:6379", "http://[::1]:7070",
                                          "unix:/run/cairn/a b.sock", longest_name};
  EXPECT_EQ(labels_of(usual), usual);

  const std::vector<std::string> strange = {"\xff",
                                            "\xfe",
                                            "\xc3\x28",
                                            "\xed\xa0\x80",
                                            std::string("nul\0", 4),
                                            "line\nbreak",
                                            "quote\"",
                                            "back\\slash",
                                            std::string(100'000, 'x'),
                                            std::string(100'001, 'x')};
  const std::vector<std::string> shown = labels_of(strange);
  EXPECT_EQ(std::set<std::string>(shown.begin(), shown.end()).size(), strange.size());
  for (const std::string& label : shown) {
    EXPECT_LE(label.size(), 1024U);
    for (const char c : label) EXPECT_TRUE(c >= 0x20 && c < 0x7F) << label;
  }
}

TEST_F(MetricsText, EveryMetricHasAHelpAndAType) {
  std::set<std::string> helped;
  std::set<std::string> typed;
  for (const std::string& line : lines_) {
    std::istringstream words(line);
    std::string hash, kind, name;
    words >> hash >> kind >> name;
    if (hash == "#" && kind == "HELP") helped.insert(name);
    if (hash == "#" && kind == "TYPE") typed.insert(name);
    if (hash == "#") continue;
    std::string series = line.substr(0, line.find_first_of("{ "));
    for (const char* suffix : {"_bucket", "_count", "_sum"}) {
      if (series.ends_with(suffix)) series.resize(series.size() - std::string(suffix).size());
    }
    EXPECT_THAT(helped, Contains(series));
    EXPECT_THAT(typed, Contains(series));
  }
}

TEST_F(MetricsText, SatisfiesPrometheusOwnChecker) {
  if (std::system("command -v promtool >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "promtool is not installed";
  }
  const fakes::TempDir dir;
  const auto file = dir.path() / "metrics";
  std::ofstream(file) << text_;
  EXPECT_EQ(std::system(("promtool check metrics < " + file.string()).c_str()), 0);
}

TEST(HttpCounters, AddUpOverRoutes) {
  HttpCounters counters(kRoutes, kMethods);
  for (std::size_t i = 0; i < 10; ++i) {
    counters.record({.route = i % 2, .method = 0, .status = 200, .duration_us = i});
  }
  std::uint64_t sum = 0;
  for (const auto& count : counters.counts()) sum += count.requests;
  EXPECT_EQ(sum, 10u);
  EXPECT_EQ(counters.durations(1).sum, 1u + 3 + 5 + 7 + 9);
}

}  // namespace
}  // namespace cairn
