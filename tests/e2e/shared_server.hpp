#pragma once

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/support/served_test.hpp"
#include "tests/store/redis_process.hpp"

namespace cairn::e2e {

// A server with a shared store. Its matches wait for the reply of the store as long as it takes: a
// deadline of 2 ms would make a test unreliable.
struct SharedHost {
  explicit SharedHost(const RedisProcess& redis, json shared = json::object(),
                      const std::vector<std::string>& more = {}, json others = json::object())
      : server({.flags = flags(written(dir, redis, {std::move(shared), std::move(others)}), more)}),
        rest(server.endpoint()) {}
  static std::vector<std::string> flags(const std::string& config,
                                        const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--config", config, "--log-level", "debug"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  struct Settings {
    json shared;
    json others;  // added to `shared`
  };
  static std::string written(const fakes::TempDir& dir, const RedisProcess& redis,
                             Settings settings) {
    json& shared = settings.shared;
    shared["url"] = redis.url();
    shared["match_deadline_us"] = 10'000'000;
    shared["timeout_ms"] = 30'000;
    if (!shared["peer"].contains("timeout_ms")) shared["peer"]["timeout_ms"] = 30'000;
    const std::string path = (dir.path() / "config.json").string();
    settings.others["shared"] = shared;
    std::ofstream(path) << settings.others.dump();
    return path;
  }

  // Blocks that are stored before the server knows the store do not go there.
  void wait_until_ready() {
    EXPECT_TRUE(eventually(
        [&] { return rest.get("/v1/system").document().at("shared").at("ready") == true; }));
  }

  fakes::TempDir dir;
  ServerProcess server;
  Rest rest;
};

inline json shared_body(const json& shared = json::object()) {
  json body = cache_body({.pinned = 32});
  body["shared"] = shared;
  return body;
}

// Counts blocks only: with holders, the store also has an entry per server.
inline int blocks_in(const RedisProcess& redis) {
  constexpr auto kCount = "return redis.call('DBSIZE') - #redis.call('KEYS', 'cairn-server:*')";
  return std::stoi(redis.ask({"EVAL", kCount, "0"}));
}

// Waits until the store has at least `count` blocks.
inline void wait_for_values(const RedisProcess& redis, int count) {
  EXPECT_TRUE(eventually([&] { return blocks_in(redis) >= count; }));
}

// Two servers with the same store, each with a cache of the same name and body.
struct TwinHosts {
  explicit TwinHosts(const json& body)
      : here(made(body)), there(TestCache::beside(here, other.rest, body)) {}
  TestCache made(const json& body) {
    one.wait_until_ready();
    other.wait_until_ready();
    return TestCache::made_of(one.rest, body);
  }

  RedisProcess redis;
  SharedHost one{redis};
  SharedHost other{redis};
  TestCache here;
  TestCache there;
};

// Two servers with the same store, each with a cache of the same namespace.
struct TwoHosts {
  explicit TwoHosts(const json& shared = json::object())
      : here(made(one, shared)), there(made(other, shared)) {}
  static TestCache made(SharedHost& host, json shared) {
    host.wait_until_ready();
    shared["namespace"] = "both";
    return TestCache::made_of(host.rest, shared_body(shared));
  }

  RedisProcess redis;
  SharedHost one{redis};
  SharedHost other{redis};
  TestCache here;
  TestCache there;
};

// A file with all tokens, and a file for each token.
struct Tokens {
  Tokens() {
    json all = json::array();
    for (const std::string name : {"admin", "peer", "write", "metrics"}) {
      const std::string token = token_of(name);
      const std::string command =
          "echo " + token + " | '" + std::string(CAIRN_SERVER_PROGRAM) + "' --hash-token";
      std::FILE* pipe = ::popen(command.c_str(), "r");
      char line[128] = "";
      EXPECT_NE(std::fgets(line, sizeof line, pipe), nullptr);
      ::pclose(pipe);
      std::string hash = line;
      hash.pop_back();
      all.push_back({{"name", name}, {"role", name}, {"sha256", hash}});
      std::ofstream(path(name)) << token << "\n";
    }
    std::ofstream(path("tokens")) << json{{"tokens", all}};
  }
  static std::string token_of(const std::string& name) { return name + "-token-of-a-test-server"; }
  std::string path(const std::string& name) const { return (dir.path() / name).string(); }
  fakes::TempDir dir;
};

inline Reply send_as(const std::string& role, SharedHost& host, const std::string& method,
                     const std::string& target, const std::string& body = {}) {
  return host.rest.send(
      {.method = method,
       .target = target,
       .body = body,
       .content_type = body.starts_with('{') ? "application/json" : "application/octet-stream",
       .headers = {{"Authorization", "Bearer " + Tokens::token_of(role)}}});
}

}  // namespace cairn::e2e
