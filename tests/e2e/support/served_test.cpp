#include "tests/e2e/support/served_test.hpp"

#include <atomic>
#include <fstream>

#include "client/metrics_text.hpp"

namespace cairn::e2e {

std::unique_ptr<fakes::TempDir> ServedTest::folder_;
std::unique_ptr<ServerProcess> ServedTest::server_;

void ServedTest::start(std::vector<std::string> flags) {
  folder_ = std::make_unique<fakes::TempDir>();
  const std::filesystem::path config = folder_->path() / "config.json";
  std::ofstream(config) << R"({"caches": []})";
  flags.insert(flags.end(), {"--config", config.string()});
  server_ = std::make_unique<ServerProcess>(
      ServerSetup{.flags = std::move(flags), .data_dir = folder_->path() / "data"});
}

void ServedTest::TearDownTestSuite() {
  EXPECT_EQ(server_->stop(), 0) << server_->output();
  server_.reset();
  folder_.reset();
}

TestCache::TestCache(Rest& rest, const json& body, Body called)
    : rest_(rest), name_(std::move(called.name)) {
  static std::atomic<int> number = 0;
  if (name_.empty()) name_ = "test-" + std::to_string(++number);
  EXPECT_THAT(rest_.put(path(), body), has_status(201));
}

void TestCache::store(int n, const std::string& query) {
  EXPECT_THAT(rest_.put_bytes(key_path(n, query), block(n)), has_status(201)) << "block " << n;
}

void TestCache::store_prefix(int first, int count, const std::string& tier) {
  const std::string body =
      write_body({{"keys", keys(first, count)}, {"tier", tier}}, blocks(first, count));
  EXPECT_TRUE(rest_.post_bytes(path("/write"), body).ok());
}

std::string TestCache::expect_intact(int n) {
  const Reply reply = rest_.get(key_path(n));
  EXPECT_THAT(reply, has_status(200)) << "block " << n;
  EXPECT_TRUE(reply.body == block(n)) << "block " << n << " has other bytes";
  return reply.header("Cairn-Tier");
}

bool TestCache::holds(int n) { return rest_.head(key_path(n)).status == 200; }

json TestCache::match(const json& keys, std::uint32_t lease_ms) {
  const Reply reply = rest_.post(path("/match"), {{"keys", keys}, {"lease_ms", lease_ms}});
  EXPECT_THAT(reply, has_status(200));
  return reply.document();
}

json TestCache::allocate(std::uint32_t count, const std::string& tier, std::uint32_t lease_ms) {
  const Reply reply =
      rest_.post(path("/allocate"), {{"count", count}, {"tier", tier}, {"lease_ms", lease_ms}});
  EXPECT_TRUE(reply.ok()) << testing::PrintToString(reply);
  return reply.document();
}

std::string TestCache::data_path(const json& handle, const std::string& lease,
                                 const std::string& more) const {
  return path("/slots/" + handle.at("tier").get<std::string>() + "/" + handle.at("slot").dump() +
              "/data?generation=" + handle.at("generation").dump() + "&lease=" + lease + more);
}

json TestCache::commit_block(const json& handle, int n) {
  return {{"tier", handle.at("tier")},
          {"slot", handle.at("slot")},
          {"generation", handle.at("generation")},
          {"key", key(n)}};
}

json TestCache::transfer(const std::vector<std::string>& keys, const std::string& to,
                         const std::string& mode) {
  const Reply reply = rest_.post(path("/transfers"),
                                 {{"keys", keys}, {"to", to}, {"mode", mode}, {"wait_ms", 60'000}});
  EXPECT_THAT(reply, has_status(200));
  return reply.document();
}

TestCache::Counts TestCache::counts() {
  const Reply reply = rest_.get("/metrics");
  EXPECT_EQ(reply.status, 200U);
  Counts counts;
  const client::Metrics metrics = client::Metrics::parse(reply.body);
  for (const char* tier : kTierNames) {
    for (const char* state : {"free", "allocated", "committed", "evictable"}) {
      const std::string series =
          "cairn_blocks{cache=\"" + name_ + "\",tier=\"" + tier + "\",state=\"" + state + "\"}";
      if (!metrics.contains(series)) continue;
      counts[std::string(tier) + "/" + state] = static_cast<int>(metrics.value(series));
    }
  }
  const std::string leases = "cairn_leases{cache=\"" + name_ + "\"}";
  EXPECT_TRUE(metrics.contains(leases)) << reply.body;
  counts["leases"] = static_cast<int>(metrics.value(leases));
  return counts;
}

int TestCache::count(const std::string& tier, const std::string& state) {
  const Counts all = counts();
  const auto found = all.find(tier + "/" + state);
  if (found != all.end()) return found->second;
  ADD_FAILURE() << "no cairn_blocks of " << tier << "/" << state;
  return -1;
}

double TestCache::metric(const std::string& name, const std::string& labels) {
  return rest_.metric(name + "{cache=\"" + name_ + "\"" + (labels.empty() ? "" : ",") + labels +
                      "}");
}

}  // namespace cairn::e2e
