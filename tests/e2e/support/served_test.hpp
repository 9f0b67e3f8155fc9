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

// A cache of a test's own, through a connection that the test may use too.
class TestCache {
 public:
  // Created, with a fresh name.
  TestCache(Rest& rest, const Shape& shape) : TestCache(rest, cache_body(shape), Body{}) {}
  static TestCache made_of(Rest& rest, const json& body) { return {rest, body, Body{}}; }

  const std::string& name() const { return name_; }
  // "/v1/caches/NAME" and what follows.
  std::string path(const std::string& rest = "") const { return "/v1/caches/" + name_ + rest; }
  std::string key_path(int n, const std::string& query = "") const {
    return path("/keys/" + key(n) + query);
  }

  // Stores block(n) under key(n), and checks that it was new.
  void store(int n, const std::string& query = "");
  // Stores a prefix, each the parent of the next.
  void store_prefix(int first, int count, const std::string& tier);
  // Checks that key(n) reads back as block(n); the tier it came from.
  std::string expect_intact(int n);
  bool holds(int n);

  // The answer's document; a test failure where it is no 200.
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

  // Slots by "tier/state", and "leases": all that a leak would show in.
  using Counts = std::map<std::string, int>;
  Counts counts();
  int count(const std::string& tier, const std::string& state);
  // One of this cache's metrics; `labels` are those behind the cache's.
  double metric(const std::string& name, const std::string& labels = "");

 private:
  struct Body {};
  TestCache(Rest& rest, const json& body, Body);

  Rest& rest_;
  std::string name_;
};

// A suite whose tests share one server; each has caches of its own.
class ServedTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { start({}); }
  // Every suite's server must have kept its head: it leaves with 0 when asked.
  static void TearDownTestSuite();
  // With these flags, and without the cache named default: it is large.
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
