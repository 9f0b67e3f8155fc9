#pragma once

#include <gmock/gmock.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/base/eventually.hpp"
#include "tests/e2e/support/rest.hpp"
#include "tests/e2e/support/server_process.hpp"
#include "tests/e2e/support/test_blocks.hpp"

namespace cairn::e2e {

// A test's own cache, through a connection that the test may use too.
class TestCache {
 public:
  // Creates the cache with a fresh name.
  TestCache(Rest& rest, const Shape& shape) : TestCache(rest, cache_body(shape), Body{}) {}
  static TestCache made_of(Rest& rest, const json& body) { return {rest, body, Body{}}; }
  // The same name as that of another server's cache.
  static TestCache beside(const TestCache& other, Rest& rest, const json& body) {
    return {rest, body, Body{other.name_}};
  }

  const std::string& name() const { return name_; }
  // "/v1/caches/NAME" followed by `rest`.
  std::string path(const std::string& rest = "") const { return "/v1/caches/" + name_ + rest; }
  std::string key_path(int n, const std::string& query = "") const {
    return path("/keys/" + key(n) + query);
  }

  // Stores block(n) under key(n), and checks that it was new.
  void store(int n, const std::string& query = "");
  // Stores a prefix: each block is the parent of the next.
  void store_prefix(int first, int count, const std::string& tier);
  // Checks that key(n) reads back as block(n); returns the tier it came from.
  std::string expect_intact(int n);
  bool holds(int n);

  // The reply's document; a test failure if its status is not 200.
  json match(const json& keys, std::uint32_t lease_ms);
  json allocate(std::uint32_t count, const std::string& tier, std::uint32_t lease_ms = 30'000);
  // The path that writes a handle's data.
  std::string data_path(const json& handle, const std::string& lease,
                        const std::string& more = "") const;
  // A block of a commit.
  static json commit_block(const json& handle, int n);
  // Starts a transfer and waits for its end.
  json transfer(const std::vector<std::string>& keys, const std::string& to,
                const std::string& mode = "copy");

  // Slots by "tier/state", and "leases": a leak would show in these.
  using Counts = std::map<std::string, int>;
  Counts counts();
  int count(const std::string& tier, const std::string& state);
  // One of this cache's metrics; `labels` follow the label of the cache.
  double metric(const std::string& name, const std::string& labels = "");

 private:
  struct Body {
    std::string name = {};  // empty: a fresh one
  };
  TestCache(Rest& rest, const json& body, Body);

  Rest& rest_;
  std::string name_;
};

// A suite whose tests share one server; each test has its own caches.
class ServedTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { start({}); }
  // Checks that the server still works: it exits with 0 when stopped.
  static void TearDownTestSuite();
  // Starts a server with these flags, and without the large cache named default.
  static void start(std::vector<std::string> flags);
  static ServerProcess& server() { return *server_; }

  void TearDown() override { EXPECT_TRUE(server_->running()) << server_->output(); }

 private:
  static std::unique_ptr<fakes::TempDir> folder_;
  static std::unique_ptr<ServerProcess> server_;

 protected:
  Rest rest_{server_->endpoint()};
};

}  // namespace cairn::e2e
