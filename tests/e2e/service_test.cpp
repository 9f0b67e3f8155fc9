#include <fstream>
#include <set>

#include "tests/e2e/support/served_test.hpp"

// A server's reports about itself.
namespace cairn::e2e {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

class ServiceTest : public ServedTest {};

TEST_F(ServiceTest, IsAliveAndReady) {
  EXPECT_THAT(rest_.get("/healthz"), has_status(200));
  EXPECT_THAT(rest_.get("/readyz"), has_status(200));
  EXPECT_THAT(rest_.head("/healthz"), has_status(200));
}

TEST_F(ServiceTest, ReportsItsRuntimeAndDevices) {
  const TestCache cache(rest_, {.device = 2, .disk = 2});
  const json system = rest_.get("/v1/system").document();
  EXPECT_FALSE(system.at("version").get<std::string>().empty());
  EXPECT_TRUE(system.at("runtime") == "host" || system.at("runtime") == "cuda");
  EXPECT_GE(system.at("devices").size(), 1U);
  EXPECT_TRUE(system.contains("build"));
  EXPECT_TRUE(system.contains("memory_visibility"));
  EXPECT_EQ(system.at("pressure").at(cache.name()),
            json({{"device", "normal"}, {"disk", "normal"}}));
}

// Every metric name and label of the contract.
TEST_F(ServiceTest, HasTheMetricsOfTheContract) {
  TestCache cache(rest_, {.device = 2, .pinned = 2, .disk = 2});
  cache.store(1);
  cache.transfer(keys(1, 1), "disk");
  const Reply reply = rest_.get("/metrics");
  EXPECT_THAT(reply.header("Content-Type"), testing::StartsWith("text/plain"));
  const client::Metrics metrics = client::Metrics::parse(reply.body);
  const std::string in_cache = "{cache=\"" + cache.name() + "\"";
  const auto expect = [&](const std::string& series) {
    EXPECT_TRUE(metrics.contains(series)) << series;
  };
  for (const std::string tier : kTierNames) {
    const std::string on_tier = in_cache + ",tier=\"" + tier + "\"";
    for (const char* state : {"free", "allocated", "committed", "evictable"}) {
      expect("cairn_blocks" + on_tier + ",state=\"" + state + "\"}");
    }
    expect("cairn_block_capacity" + on_tier + "}");
    expect("cairn_leased_blocks" + on_tier + "}");
    expect("cairn_pressure_level" + on_tier + "}");
    expect("cairn_evictions_total" + on_tier + ",reason=\"capacity\"}");
    expect("cairn_checksum_failures_total{tier=\"" + tier + "\"}");
    expect("cairn_match_blocks_total" + in_cache + ",result=\"" + tier + "\"}");
  }
  expect("cairn_match_blocks_total" + in_cache + ",result=\"miss\"}");
  expect("cairn_leases" + in_cache + "}");
  expect("cairn_lease_expirations_total" + in_cache + "}");
  const std::string route = "from=\"device\",to=\"disk\"";
  expect("cairn_transfers_total" + in_cache + "," + route + ",outcome=\"done\"}");
  expect("cairn_transfer_bytes_total" + in_cache + "," + route + "}");
  expect("cairn_transfer_duration_seconds_count{" + route + "}");
  expect("cairn_transfer_duration_seconds_sum{" + route + "}");
  expect("cairn_transfer_duration_seconds_bucket{" + route + ",le=\"+Inf\"}");
  expect("cairn_transfers_in_flight{" + route + "}");
  expect("cairn_transfer_queue_depth");
  expect(
      "cairn_http_requests_total{route=\"/v1/caches/{cache}/transfers\",method=\"POST\","
      "code=\"200\"}");
  expect("cairn_http_request_duration_seconds_count{route=\"/v1/caches/{cache}/transfers\"}");
  for (const char* name :
       {"allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "largest_free_bytes",
        "allocations_total", "frees_total", "cache_hits_total", "cache_misses_total",
        "splits_total", "merges_total"}) {
    const std::string of_allocator = "cairn_allocator_" + std::string(name) + "{allocator=\"";
    for (const char* device : {"0", "host", "disk"}) {
      expect(of_allocator + "slots\",device=\"" + device + "\"}");
    }
    expect(of_allocator + "request_staging\",device=\"host\"}");
    expect(of_allocator + "transfer_staging\",device=\"host\"}");
  }
  EXPECT_THAT(reply.body, HasSubstr("cairn_build_info{"));
  EXPECT_EQ(metrics.value("cairn_transfers_total" + in_cache + "," + route + ",outcome=\"done\"}"),
            1);
}

TEST_F(ServiceTest, CountsRequestsByRouteOnly) {
  TestCache cache(rest_, {.device = 2});
  const std::string series =
      "cairn_http_requests_total{route=\"/v1/caches/{cache}/keys/{key}\",method=\"GET\","
      "code=\"404\"}";
  const double before = rest_.metric(series);
  for (int n = 0; n < 3; ++n) rest_.get(cache.key_path(n));
  EXPECT_TRUE(eventually([&] { return rest_.metric(series) == before + 3; }));
  rest_.get("/no/such/path-of-mine");
  rest_.get("/v1/caches/no-cache-of-mine");
  const std::string text = rest_.get("/metrics").body;
  EXPECT_THAT(text, Not(HasSubstr(key(1))));
  EXPECT_THAT(text, Not(HasSubstr("of-mine")));
}

TEST_F(ServiceTest, CountsAFailedUploadUnderItsRoute) {
  TestCache cache(rest_, {.device = 4});
  const std::string bad_header("\x02\0\0\0[]", 6);
  EXPECT_THAT(rest_.post_bytes(cache.path("/write"), bad_header), is_problem(400));
  const auto count = [this](const std::string& route) {
    return rest_.metric("cairn_http_requests_total{route=\"" + route +
                        "\",method=\"POST\",code=\"400\"}");
  };
  // The request is counted a moment after its response.
  EXPECT_TRUE(eventually([&] { return count("/v1/caches/{cache}/write") == 1; }));
  EXPECT_EQ(count("none"), 0);
}

TEST_F(ServiceTest, RemovesTheMetricsOfADeletedCache) {
  const TestCache cache(rest_, {.device = 2});
  EXPECT_THAT(rest_.get("/metrics").body, HasSubstr(cache.name() + "\""));
  EXPECT_TRUE(rest_.del(cache.path()).ok());
  EXPECT_THAT(rest_.get("/metrics").body, Not(HasSubstr(cache.name() + "\"")));
}

TEST_F(ServiceTest, CountsTheSlotsOfADeletedCacheAsFreed) {
  const std::string allocations =
      "cairn_allocator_allocations_total{allocator=\"slots\",device=\"0\"}";
  const std::string frees = "cairn_allocator_frees_total{allocator=\"slots\",device=\"0\"}";
  const double before = rest_.metric(allocations);
  const double freed_before = rest_.metric(frees);
  TestCache cache(rest_, {.device = 2});
  cache.store(1);
  EXPECT_EQ(rest_.metric(allocations), before + 1);
  // Slots come with their tier, so taking one is not a cache hit.
  EXPECT_EQ(rest_.metric("cairn_allocator_cache_hits_total{allocator=\"slots\",device=\"0\"}"), 0);
  EXPECT_TRUE(rest_.del(cache.path()).ok());
  EXPECT_EQ(rest_.metric(allocations), before + 1);
  EXPECT_EQ(rest_.metric(frees), freed_before + 1);
}

// The routes of the contract, such as "get /v1/caches/{cache}".
const std::set<std::string> kContract = {"get /v1/caches",
                                         "put /v1/caches/{cache}",
                                         "get /v1/caches/{cache}",
                                         "delete /v1/caches/{cache}",
                                         "post /v1/caches/{cache}/match",
                                         "post /v1/caches/{cache}/allocate",
                                         "put /v1/caches/{cache}/slots/{tier}/{slot}/data",
                                         "post /v1/caches/{cache}/commit",
                                         "post /v1/leases/{lease}/renew",
                                         "post /v1/leases/{lease}/release",
                                         "delete /v1/leases/{lease}",
                                         "put /v1/caches/{cache}/keys/{key}",
                                         "get /v1/caches/{cache}/keys/{key}",
                                         "head /v1/caches/{cache}/keys/{key}",
                                         "delete /v1/caches/{cache}/keys/{key}",
                                         "post /v1/caches/{cache}/read",
                                         "post /v1/caches/{cache}/write",
                                         "post /v1/caches/{cache}/transfers",
                                         "post /v1/caches/{cache}/evict",
                                         "post /v1/caches/{cache}/clear",
                                         "get /v1/caches/{cache}/blocks",
                                         "get /v1/caches/{cache}/keys/{key}/metadata",
                                         "put /v1/caches/{cache}/keys/{key}/metadata",
                                         "get /healthz",
                                         "get /readyz",
                                         "get /v1/system",
                                         "get /metrics",
                                         "get /openapi.json",
                                         "get /"};

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// A path of the document with every {name} filled in.
std::string filled(std::string path) {
  while (path.find('{') != std::string::npos) {
    const std::size_t begin = path.find('{');
    path.replace(begin, path.find('}') - begin + 1, "00");
  }
  return path;
}

TEST_F(ServiceTest, DescribesEveryRouteOfTheContractAndNoOther) {
  const Reply reply = rest_.get("/openapi.json");
  ASSERT_THAT(reply, has_status(200));
  EXPECT_EQ(reply.header("Content-Type"), "application/json");
  const json document = reply.document();
  EXPECT_THAT(document.at("openapi").get<std::string>(), testing::StartsWith("3.1"));
  std::set<std::string> described;
  for (const auto& [path, operations] : document.at("paths").items()) {
    for (const auto& [method, operation] : operations.items()) {
      if (method == "parameters" || method == "summary" || method == "description") continue;
      described.insert(method + " " + path);
      EXPECT_FALSE(operation.at("responses").empty()) << method << " " << path;
      if (path == "/v1/events") continue;  // this stream does not end
      const Reply probe = rest_.send({.method = upper(method), .target = filled(path)});
      EXPECT_NE(probe.code(), "not_found") << method << " " << path;
      EXPECT_NE(probe.status, 405U) << method << " " << path;
      EXPECT_NE(probe.status, 0U) << method << " " << path;
    }
  }
  for (const std::string& route : kContract) EXPECT_THAT(described, Contains(route));
  EXPECT_GE(described.size(), kContract.size() + 2) << "the two of /v1/transfers/{id}";
}

TEST_F(ServiceTest, ResolvesEveryReferenceOfItsDescription) {
  const std::string text = rest_.get("/openapi.json").body;
  const json document = json::parse(text);
  std::vector<const json*> left = {&document};
  while (!left.empty()) {
    const json& node = *left.back();
    left.pop_back();
    if (node.is_object() && node.contains("$ref")) {
      const std::string target = node.at("$ref");
      ASSERT_EQ(target.substr(0, 2), "#/");
      EXPECT_TRUE(document.contains(json::json_pointer(target.substr(1)))) << target;
    }
    for (const json& child : node) {
      if (child.is_structured()) left.push_back(&child);
    }
  }
}

TEST_F(ServiceTest, KeepsTheTrafficOfTheLastHour) {
  TestCache cache(rest_, {.pinned = 2});
  cache.store(1);
  static_cast<void>(cache.match({key(1), key(2)}, 0));
  json history;
  EXPECT_TRUE(eventually([&] {
    history = rest_.get("/v1/history").document();
    std::uint64_t asked = 0;
    for (const json& one : history.at("samples"))
      asked += one.at("asked_blocks").get<std::uint64_t>();
    return asked >= 2;
  })) << history;
  EXPECT_EQ(history.at("kept_ms"), 3'600'000);
  const std::uint64_t last = history.at("samples").back().at("number");
  const json later = rest_.get("/v1/history?after=" + std::to_string(last)).document();
  for (const json& one : later.at("samples")) EXPECT_GT(one.at("number"), last);
  EXPECT_THAT(rest_.get("/v1/history?after=x"), is_problem(400, "wrong_type"));
  EXPECT_THAT(rest_.get("/v1/history?since=1"), is_refusal());
}

// The alert rules link to these.
TEST_F(ServiceTest, ServesTheRunbookOfAnAlert) {
  const Reply runbook = rest_.get("/runbooks/CairnOutOfMemory");
  EXPECT_THAT(runbook, has_status(200));
  EXPECT_THAT(runbook.header("Content-Type"), testing::StartsWith("text/plain"));
  EXPECT_THAT(runbook.body, testing::StartsWith("### CairnOutOfMemory\n"));
  EXPECT_THAT(runbook.body, Not(HasSubstr("CairnBlocksHeld\n")));
  for (const char* name : {"CairnOut", "cairnoutofmemory", "Alerts", "%0A", "CairnDown%0A"}) {
    EXPECT_THAT(rest_.get("/runbooks/" + std::string(name)), is_problem(400, "out_of_range"))
        << name;
  }
}

TEST_F(ServiceTest, ServesAPageWithoutOutsideAssets) {
  const Reply page = rest_.get("/");
  ASSERT_THAT(page, has_status(200));
  EXPECT_THAT(page.header("Content-Type"), testing::StartsWith("text/html"));
  EXPECT_THAT(page.body, HasSubstr("<html"));
  for (const char* outside : {"src=\"http", "href=\"http", "src=\"//", "href=\"//", "url(http",
                              "@import", "src='http", "href='http", "import("}) {
    EXPECT_THAT(page.body, Not(HasSubstr(outside)));
  }
  EXPECT_THAT(page.header("Content-Security-Policy"), HasSubstr("default-src 'none'"));
}

}  // namespace
}  // namespace cairn::e2e
