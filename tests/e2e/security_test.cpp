// Access control over real sockets, as an attacker would test it.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/e2e/support/event_listener.hpp"
#include "tests/e2e/support/raw_connection.hpp"
#include "tests/e2e/support/served_test.hpp"
#include "tests/fakes/tls/certificates.hpp"
#include "tests/fakes/tls/tls_client.hpp"

namespace cairn::e2e {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

const std::string kReader = "reader-reader-reader";
const std::string kWriter = "writer-writer-writer";
const std::string kAdmin = "admin-admin-admin-admin";
const std::string kFrugal = "frugal-frugal-frugal";  // writes, two pinned blocks at the most
const std::string kMetrics = "metrics-metrics-metrics";
const std::string kPeer = "peer-peer-peer-peer-peer";
const std::string kSparing = "sparing-sparing-sparing";  // writes, two leased blocks at the most
const std::string kTenant = "tenant-tenant-tenant";      // writes, in the cache `mine` only

// A token's hash, as the server program prints it.
std::string hash_of(const std::string& token) {
  const std::string command =
      "echo " + token + " | '" + std::string(CAIRN_SERVER_PROGRAM) + "' --hash-token";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  char line[128] = "";
  const bool read = pipe != nullptr && std::fgets(line, sizeof line, pipe) != nullptr;
  const int status = pipe == nullptr ? -1 : ::pclose(pipe);
  std::string hash = read && status == 0 ? line : "";
  if (!hash.empty()) hash.pop_back();
  return hash;
}

json token(const std::string& token, const std::string& role) {
  return {{"name", token.substr(0, token.find('-'))}, {"role", role}, {"sha256", hash_of(token)}};
}

class SecurityTest : public ServedTest {
 protected:
  static void SetUpTestSuite() {
    tokens_folder_ = std::make_unique<fakes::TempDir>();
    write_tokens(all_tokens());
    start({"--tokens", tokens_path(), "--import-folders", tokens_folder_->path().string()});
  }
  static void TearDownTestSuite() {
    ServedTest::TearDownTestSuite();
    tokens_folder_.reset();
  }

  static std::string tokens_path() { return (tokens_folder_->path() / "tokens").string(); }
  static json all_tokens() {
    json tenant = token(kTenant, "write");
    tenant["caches"] = {"mine"};
    json sparing = token(kSparing, "write");
    sparing["max_leased_blocks"] = 2;
    sparing["max_registered_bytes"] = 65'536;
    json frugal = token(kFrugal, "write");
    frugal["max_blocks"] = {{"pinned", 2}};
    return {token(kReader, "read"),
            token(kWriter, "write"),
            token(kAdmin, "admin"),
            token(kMetrics, "metrics"),
            token(kPeer, "peer"),
            tenant,
            sparing,
            frugal};
  }
  static void write_tokens(const json& tokens) {
    std::ofstream(tokens_path()) << json{{"tokens", tokens}};
  }

  Reply as(const std::string& token, Request request) {
    request.headers.emplace_back("Authorization", "Bearer " + token);
    return rest_.send(request);
  }
  Reply get_as(const std::string& token, const std::string& target) {
    return as(token, {.target = target});
  }
  Reply put_cache_as(const std::string& token, const std::string& name) {
    return as(token, {.method = "PUT",
                      .target = "/v1/caches/" + name,
                      .body = cache_body({.pinned = 4}).dump(),
                      .content_type = "application/json"});
  }
  Reply put_key_as(const std::string& token, const std::string& cache, int n) {
    return as(token, {.method = "PUT",
                      .target = "/v1/caches/" + cache + "/keys/" + key(n),
                      .body = block(n),
                      .content_type = "application/octet-stream"});
  }
  Reply post_as(const std::string& token, const std::string& target, const json& body) {
    return as(token, {.method = "POST",
                      .target = target,
                      .body = body.dump(),
                      .content_type = "application/json"});
  }

  static std::unique_ptr<fakes::TempDir> tokens_folder_;
};
std::unique_ptr<fakes::TempDir> SecurityTest::tokens_folder_;

TEST_F(SecurityTest, AgentBelongsToItsToken) {
  const auto file = tokens_folder_->path() / "area";
  std::ofstream(file).close();
  std::filesystem::resize_file(file, 4096);
  const auto send_as = [&](const std::string& token, const std::string& method,
                           const std::string& target, const json& body) {
    return as(token, {.method = method,
                      .target = target,
                      .body = body.is_null() ? "" : body.dump(),
                      .content_type = body.is_null() ? "" : "application/json"});
  };
  json cache = cache_body({.pinned = 4});
  ASSERT_THAT(send_as(kAdmin, "PUT", "/v1/caches/of-agents", cache), has_status(201));
  json shape = cache.at("layout");
  shape.erase("alignment");
  const json agent = {{"num_blocks", 4},
                      {"layout", "fully_contiguous"},
                      {"shape", shape},
                      {"regions",
                       {{{"kind", "shm"},
                         {"path", file.string()},
                         {"offset_bytes", 0},
                         {"size_bytes", 4 * kBlockBytes}}}}};
  const std::string path = "/v1/agents/mine";
  EXPECT_THAT(send_as(kReader, "PUT", path, agent), is_problem(403, "forbidden"));
  EXPECT_THAT(send_as(kWriter, "PUT", path, agent), has_status(201));
  EXPECT_THAT(send_as(kTenant, "PUT", path, agent), is_problem(409, "agent_exists"));
  const json load = {{"keys", json::array()}, {"agent", "mine"}, {"blocks", json::array()}};
  EXPECT_THAT(send_as(kWriter, "POST", "/v1/caches/of-agents/load", load), has_status(200));
  EXPECT_THAT(send_as(kFrugal, "POST", "/v1/caches/of-agents/load", load),
              is_problem(404, "unknown_agent"));
  EXPECT_THAT(send_as(kAdmin, "POST", "/v1/caches/of-agents/store", load),
              is_problem(404, "unknown_agent"));
  EXPECT_THAT(send_as(kTenant, "POST", "/v1/caches/of-agents/load", load),
              is_problem(403, "forbidden"));
  EXPECT_THAT(send_as(kTenant, "GET", path, nullptr), is_problem(404, "unknown_agent"));
  EXPECT_EQ(send_as(kTenant, "GET", "/v1/agents", nullptr).document(),
            json({{"agents", json::array()}}));
  EXPECT_EQ(send_as(kAdmin, "GET", path, nullptr).document().at("token"), "writer");
  EXPECT_THAT(send_as(kFrugal, "DELETE", path, nullptr), is_problem(404, "unknown_agent"));
  EXPECT_THAT(send_as(kAdmin, "DELETE", path, nullptr), has_status(204));
  ASSERT_THAT(send_as(kAdmin, "DELETE", "/v1/caches/of-agents", nullptr), has_status(204));
}

TEST_F(SecurityTest, RequiresATokenExceptForHealth) {
  for (const char* open : {"/healthz", "/readyz"}) EXPECT_THAT(rest_.get(open), has_status(200));
  for (const char* closed : {"/", "/metrics", "/openapi.json", "/v1/system", "/v1/caches",
                             "/v1/caches/x", "/v1/transfers/t-1", "/v1/events"}) {
    const Reply reply = rest_.get(closed);
    EXPECT_THAT(reply, is_problem(401, "unauthorized")) << closed;
    EXPECT_THAT(reply.header("WWW-Authenticate"), HasSubstr("Bearer")) << closed;
  }
  EXPECT_THAT(rest_.put_bytes("/v1/caches/x/keys/aa", block(1)), is_problem(401));
  EXPECT_THAT(get_as("writer-writer-writeR", "/v1/caches"), is_problem(401));
}

TEST_F(SecurityTest, RefusesBasicCredentialsOfPaddingOnly) {
  for (const std::string& credentials :
       {std::string("===="), std::string("a==="), std::string(400, '=')}) {
    const Reply reply = rest_.send(
        {.target = "/v1/caches", .headers = {{"Authorization", "Basic " + credentials}}});
    EXPECT_THAT(reply, is_problem(401, "unauthorized")) << credentials;
  }
}

TEST_F(SecurityTest, HintSparesBlocksThatAnotherTokenUses) {
  ASSERT_THAT(put_cache_as(kAdmin, "hints"), has_status(201));
  const std::string hints = "/v1/caches/hints/hints";
  const auto hint_as = [&](const std::string& token, const json& more) {
    json body = {{"reuse", "never"}};
    body.update(more);
    return post_as(token, hints, body).document();
  };
  EXPECT_THAT(post_as(kReader, hints, {{"reuse", "never"}, {"session", "chat"}}),
              is_problem(403, "forbidden"));
  for (int n = 1; n <= 4; ++n) EXPECT_THAT(put_key_as(kWriter, "hints", n), has_status(201));
  const json one = {{"keys", keys(1, 1)}};
  EXPECT_EQ(hint_as(kSparing, one).at("shared"), 1) << "this token never used it";
  // The reader's match, and its own hint with it, make the block shared by both tokens.
  post_as(kReader, "/v1/caches/hints/match",
          {{"keys", keys(1, 1)}, {"lease_ms", 0}, {"reuse", "never"}, {"session", "chat"}});
  EXPECT_EQ(hint_as(kWriter, one).at("shared"), 1);
  EXPECT_EQ(hint_as(kWriter, {{"keys", keys(2, 1)}}).at("blocks"), 1);
  // The same name of another token is another conversation.
  EXPECT_EQ(hint_as(kWriter, {{"session", "chat"}}),
            (json{{"blocks", 0}, {"shared", 0}, {"missing", 0}}));
  // The blocks leave in the order of their uses, except that the writer's own block goes first.
  EXPECT_THAT(put_key_as(kWriter, "hints", 5), has_status(201));
  EXPECT_THAT(get_as(kReader, "/v1/caches/hints/keys/" + key(2)), is_problem(404));
  EXPECT_THAT(get_as(kReader, "/v1/caches/hints/keys/" + key(1)), has_status(200));
}

TEST_F(SecurityTest, GrantsARoleOnlyItsRights) {
  EXPECT_THAT(put_cache_as(kReader, "roles"), is_problem(403, "forbidden"));
  EXPECT_THAT(put_cache_as(kWriter, "roles"), is_problem(403, "forbidden"));
  EXPECT_THAT(put_cache_as(kAdmin, "roles"), has_status(201));

  EXPECT_THAT(put_key_as(kReader, "roles", 1), is_problem(403, "forbidden"));
  EXPECT_THAT(put_key_as(kWriter, "roles", 1), has_status(201));
  const Reply read = get_as(kReader, "/v1/caches/roles/keys/" + key(1));
  EXPECT_EQ(read.body, block(1));

  const Reply match =
      post_as(kReader, "/v1/caches/roles/match", {{"keys", {key(1)}}, {"lease_ms", 30'000}});
  EXPECT_THAT(match, has_status(200));
  const std::string lease = match.document().at("lease");
  EXPECT_THAT(as(kReader, {.method = "DELETE", .target = "/v1/leases/" + lease}), has_status(200));

  EXPECT_THAT(post_as(kWriter, "/v1/caches/roles/clear", json::object()), is_problem(403));
  EXPECT_THAT(post_as(kAdmin, "/v1/caches/roles/clear", json::object()), has_status(200));
  EXPECT_THAT(as(kWriter, {.method = "DELETE", .target = "/v1/caches/roles"}), is_problem(403));
  EXPECT_THAT(as(kAdmin, {.method = "DELETE", .target = "/v1/caches/roles"}), has_status(204));
}

TEST_F(SecurityTest, MetricsRoleReadsMetricsOnly) {
  for (const char* open : {"/metrics", "/healthz", "/readyz"}) {
    EXPECT_THAT(get_as(kMetrics, open), has_status(200)) << open;
  }
  for (const char* closed : {"/", "/v1/caches", "/v1/system", "/openapi.json", "/v1/events",
                             "/v1/groups", "/v1/caches/x/keys/aa"}) {
    EXPECT_THAT(get_as(kMetrics, closed), is_problem(403, "forbidden")) << closed;
  }
  EXPECT_THAT(put_key_as(kMetrics, "x", 1), is_problem(403, "forbidden"));
}

TEST_F(SecurityTest, PeerRoleReadsBlocksOnly) {
  ASSERT_TRUE(put_cache_as(kAdmin, "peers").ok());
  ASSERT_TRUE(put_key_as(kWriter, "peers", 1).ok());
  const std::string cache = "/v1/caches/peers";
  EXPECT_EQ(get_as(kPeer, cache + "/keys/" + key(1)).body, block(1));
  EXPECT_EQ(post_as(kPeer, cache + "/read", {{"keys", {key(1)}}}).body, block(1));
  EXPECT_THAT(post_as(kPeer, cache + "/match", {{"keys", {key(1)}}}), is_problem(403, "forbidden"));
  EXPECT_THAT(put_key_as(kPeer, "peers", 2), is_problem(403, "forbidden"));
  for (const std::string closed : {"/metrics", "/v1/caches", "/v1/caches/peers/blocks"}) {
    EXPECT_THAT(get_as(kPeer, closed), is_problem(403, "forbidden")) << closed;
  }
}

TEST_F(SecurityTest, BasicCredentialsAllowReadingOnly) {
  ASSERT_TRUE(put_cache_as(kAdmin, "browsed").ok());
  ASSERT_TRUE(put_key_as(kWriter, "browsed", 1).ok());
  // printf 'me:admin-admin-admin-admin' | base64
  const std::pair<std::string, std::string> basic = {"Authorization",
                                                     "Basic bWU6YWRtaW4tYWRtaW4tYWRtaW4tYWRtaW4="};
  EXPECT_THAT(rest_.send({.target = "/v1/caches", .headers = {basic}}), has_status(200));
  for (const auto& [method, path] : std::vector<std::pair<std::string, std::string>>{
           {"POST", "/clear"}, {"POST", "/tiers/pinned/export"}, {"DELETE", ""}}) {
    EXPECT_THAT(
        rest_.send({.method = method, .target = "/v1/caches/browsed" + path, .headers = {basic}}),
        is_problem(401, "unauthorized"))
        << method << path;
  }
  EXPECT_EQ(get_as(kReader, "/v1/caches/browsed/keys/" + key(1)).body, block(1));
}

// Onboarding evicts other blocks, as a transfer does.
TEST_F(SecurityTest, OnboardingNeedsTheWriteRole) {
  ASSERT_TRUE(put_cache_as(kAdmin, "onboarded").ok());
  ASSERT_TRUE(put_key_as(kWriter, "onboarded", 1).ok());
  const json body = {{"keys", {key(1)}}, {"onboard", "pinned"}, {"lease_ms", 30'000}};
  EXPECT_THAT(post_as(kReader, "/v1/caches/onboarded/match", body), is_problem(403, "forbidden"));
  EXPECT_THAT(post_as(kWriter, "/v1/caches/onboarded/match", body), has_status(200));
}

TEST_F(SecurityTest, ConfinesATokenToItsCaches) {
  ASSERT_TRUE(put_cache_as(kAdmin, "mine").ok());
  ASSERT_TRUE(put_cache_as(kAdmin, "theirs").ok());
  EXPECT_THAT(put_key_as(kTenant, "mine", 1), has_status(201));
  EXPECT_THAT(put_key_as(kTenant, "theirs", 1), is_problem(403, "forbidden"));
  EXPECT_THAT(put_key_as(kTenant, "nobodys", 1), is_problem(403, "forbidden"));

  // Leases and transfers belong to a cache too.
  ASSERT_TRUE(put_key_as(kWriter, "theirs", 2).ok());
  const Reply match =
      post_as(kWriter, "/v1/caches/theirs/match", {{"keys", {key(2)}}, {"lease_ms", 30'000}});
  const std::string lease = match.document().at("lease");
  EXPECT_THAT(as(kTenant, {.method = "DELETE", .target = "/v1/leases/" + lease}), is_problem(403));
  EXPECT_THAT(as(kWriter, {.method = "DELETE", .target = "/v1/leases/" + lease}), has_status(200));
  const Reply moving = post_as(kWriter, "/v1/caches/theirs/transfers",
                               {{"keys", {key(2)}}, {"to", "pinned"}, {"wait_ms", 10'000}});
  const std::string transfer = moving.document().at("transfer");
  EXPECT_THAT(get_as(kTenant, "/v1/transfers/" + transfer), is_problem(403));
  EXPECT_THAT(get_as(kWriter, "/v1/transfers/" + transfer), has_status(200));

  const json listed = get_as(kTenant, "/v1/caches").document().at("caches");
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].at("name"), "mine");
  EXPECT_THAT(get_as(kTenant, "/metrics"), is_problem(403, "forbidden"));
  EXPECT_THAT(get_as(kTenant, "/v1/system"), is_problem(403, "forbidden"));
}

// Anyone who knows a lease may end it.
TEST_F(SecurityTest, ShowsATokenItsOwnLeasesAndTransfersOfItsCaches) {
  ASSERT_TRUE(put_cache_as(kAdmin, "mine").ok());
  ASSERT_TRUE(put_cache_as(kAdmin, "shown").ok());
  for (const char* name : {"mine", "shown"}) {
    ASSERT_TRUE(put_key_as(kWriter, name, 1).ok());
    ASSERT_TRUE(post_as(kWriter, "/v1/caches/" + std::string(name) + "/transfers",
                        {{"keys", {key(1)}}, {"to", "pinned"}, {"wait_ms", 10'000}})
                    .ok());
  }
  for (const std::string& who : {kReader, kWriter}) {
    ASSERT_TRUE(
        post_as(who, "/v1/caches/shown/match", {{"keys", {key(1)}}, {"lease_ms", 30'000}}).ok());
  }
  const auto holders = [&](const std::string& who) {
    std::vector<std::string> names;
    const json leases = get_as(who, "/v1/caches/shown/leases").document().at("leases");
    for (const json& lease : leases) names.push_back(lease.at("token"));
    return names;
  };
  EXPECT_THAT(holders(kReader), ::testing::ElementsAre("reader"));
  EXPECT_THAT(holders(kWriter), ::testing::ElementsAre("writer"));
  EXPECT_THAT(holders(kAdmin), ::testing::UnorderedElementsAre("reader", "writer"));
  EXPECT_THAT(get_as(kTenant, "/v1/caches/shown/leases"), is_problem(403, "forbidden"));

  const auto caches = [&](const std::string& who) {
    std::set<std::string> names;
    const json transfers = get_as(who, "/v1/transfers?limit=1000").document().at("transfers");
    for (const json& transfer : transfers) names.insert(transfer.at("cache"));
    return names;
  };
  EXPECT_THAT(caches(kTenant), ::testing::ElementsAre("mine"));
  EXPECT_THAT(caches(kAdmin), ::testing::IsSupersetOf({"mine", "shown"}));
  EXPECT_THAT(get_as(kTenant, "/v1/transfers?cache=shown"), is_problem(403, "forbidden"));
}

TEST_F(SecurityTest, BlockQuotaCoversAllCaches) {
  ASSERT_TRUE(put_cache_as(kAdmin, "frugal-1").ok());
  ASSERT_TRUE(put_cache_as(kAdmin, "frugal-2").ok());
  EXPECT_THAT(put_key_as(kFrugal, "frugal-1", 1), has_status(201));
  EXPECT_THAT(put_key_as(kFrugal, "frugal-1", 1), has_status(200)) << "a duplicate takes no block";
  EXPECT_THAT(put_key_as(kFrugal, "frugal-2", 2), has_status(201));
  EXPECT_THAT(put_key_as(kFrugal, "frugal-2", 3), is_problem(507, "no_capacity"));
  EXPECT_THAT(post_as(kFrugal, "/v1/caches/frugal-1/allocate", {{"count", 1}, {"tier", "pinned"}}),
              is_problem(507, "no_capacity"));
  EXPECT_THAT(put_key_as(kWriter, "frugal-2", 3), has_status(201))
      << "the limit is for one token only";

  const std::string key_path = "/v1/caches/frugal-1/keys/" + key(1);
  EXPECT_EQ(as(kWriter, {.method = "DELETE", .target = key_path}).status / 100, 2u);
  EXPECT_THAT(put_key_as(kFrugal, "frugal-1", 4), has_status(201));
  EXPECT_THAT(put_key_as(kFrugal, "frugal-1", 5), is_problem(507));
  EXPECT_THAT(as(kAdmin, {.method = "DELETE", .target = "/v1/caches/frugal-1"}), has_status(204));
  EXPECT_TRUE(eventually([&] { return put_key_as(kFrugal, "frugal-2", 6).status == 201; }))
      << "a dropped cache gives its blocks back";
}

TEST_F(SecurityTest, LeaseQuotaCoversAllCaches) {
  ASSERT_TRUE(put_cache_as(kAdmin, "pinned-1").ok());
  ASSERT_TRUE(put_cache_as(kAdmin, "pinned-2").ok());
  for (int n = 1; n <= 3; ++n) ASSERT_TRUE(put_key_as(kWriter, "pinned-1", n).ok());
  const std::string quota = "lease_quota";
  const auto match = [&](const std::string& token, int first, int count, int lease_ms) {
    return post_as(token, "/v1/caches/pinned-1/match",
                   {{"keys", keys(first, count)}, {"lease_ms", lease_ms}});
  };
  EXPECT_THAT(match(kSparing, 1, 3, 30'000), is_problem(429, quota));
  EXPECT_THAT(match(kSparing, 1, 3, 0), has_status(200)) << "a lookup pins nothing";
  EXPECT_THAT(match(kWriter, 1, 3, 30'000), has_status(200)) << "the limit is for one token only";
  const Reply held = match(kSparing, 2, 9, 30'000);
  EXPECT_EQ(held.document().at("matched"), 2);
  const json allocate = {{"count", 1}, {"tier", "pinned"}};
  const Reply refused = post_as(kSparing, "/v1/caches/pinned-2/allocate", allocate);
  EXPECT_THAT(refused, is_problem(429, quota)) << "in all caches together";
  EXPECT_NE(refused.header("Retry-After"), "");
  const std::string lease = held.document().at("lease");
  EXPECT_THAT(as(kSparing, {.method = "DELETE", .target = "/v1/leases/" + lease}), has_status(200));
  const Reply allocated = post_as(kSparing, "/v1/caches/pinned-2/allocate", allocate);
  ASSERT_THAT(allocated, has_status(200));
  const std::string last = allocated.document().at("lease");
  EXPECT_THAT(as(kSparing, {.method = "DELETE", .target = "/v1/leases/" + last}), has_status(200));
}

TEST_F(SecurityTest, LeaseQuotaCoversRequestsWithoutALease) {
  ASSERT_TRUE(put_cache_as(kAdmin, "in-flight").ok());
  const std::string path = "/v1/caches/in-flight";
  const std::string quota = "lease_quota";
  const auto write = [&](int first, int count) {
    return as(kSparing, {.method = "POST",
                         .target = path + "/write",
                         .body = write_body({{"keys", keys(first, count)}}, blocks(first, count)),
                         .content_type = "application/octet-stream"});
  };
  EXPECT_THAT(write(1, 3), is_problem(429, quota));
  EXPECT_THAT(write(1, 2), has_status(200));
  EXPECT_THAT(write(1, 2), has_status(200)) << "duplicates are held briefly";
  EXPECT_THAT(put_key_as(kSparing, "in-flight", 3), has_status(201));

  const auto read = [&](int first, int count) {
    return post_as(kSparing, path + "/read", {{"keys", keys(first, count)}});
  };
  EXPECT_THAT(read(1, 3), is_problem(429, quota));
  EXPECT_EQ(read(1, 2).body, blocks(1, 2));
  EXPECT_EQ(read(3, 9).body, block(3)) << "only existing blocks count";
  const auto move = [&](int count) {
    return post_as(kSparing, path + "/transfers",
                   {{"keys", keys(1, count)}, {"to", "pinned"}, {"wait_ms", 20'000}});
  };
  EXPECT_THAT(move(3), is_problem(429, quota));
  EXPECT_THAT(move(2), has_status(200));
  const auto broadcast = [&](int count) {
    return post_as(kSparing, "/v1/groups/nowhere/broadcast",
                   {{"cache", "in-flight"}, {"keys", keys(1, count)}, {"root", 0}});
  };
  EXPECT_THAT(broadcast(3), is_problem(429, quota));
  for (int i = 0; i < 3; ++i) EXPECT_THAT(broadcast(2), is_problem(404, "unknown_group"));

  const Reply held =
      post_as(kSparing, path + "/match", {{"keys", keys(1, 2)}, {"lease_ms", 30'000}});
  ASSERT_THAT(held, has_status(200));
  EXPECT_THAT(get_as(kSparing, path + "/keys/" + key(3)), is_problem(429, quota));
  EXPECT_THAT(put_key_as(kSparing, "in-flight", 4), is_problem(429, quota));
  const std::string lease = held.document().at("lease");
  EXPECT_THAT(as(kSparing, {.method = "DELETE", .target = "/v1/leases/" + lease}), has_status(200));
  EXPECT_THAT(get_as(kSparing, path + "/keys/" + key(3)), has_status(200));
}

TEST_F(SecurityTest, LimitsTheMemoryThatATokenRegisters) {
  const auto file = tokens_folder_->path() / "large-area";
  std::ofstream(file).close();
  std::filesystem::resize_file(file, 1 << 20);
  ASSERT_TRUE(put_cache_as(kAdmin, "of-memory").ok());
  json shape = get_as(kAdmin, "/v1/caches/of-memory").document().at("layout");
  shape.erase("alignment");
  const auto put = [&](std::uint64_t offset_bytes) {
    const json agent = {{"num_blocks", 4},
                        {"layout", "fully_contiguous"},
                        {"shape", shape},
                        {"regions",
                         {{{"kind", "shm"},
                           {"path", file.string()},
                           {"offset_bytes", offset_bytes},
                           {"size_bytes", 4 * kBlockBytes}}}}};
    return as(kSparing, {.method = "PUT",
                         .target = "/v1/agents/large",
                         .body = agent.dump(),
                         .content_type = "application/json"});
  };
  EXPECT_THAT(put(65'536), is_problem(507, "no_capacity")) << "counted from the file's first byte";
  EXPECT_THAT(put(0), has_status(201));
  EXPECT_THAT(as(kSparing, {.method = "DELETE", .target = "/v1/agents/large"}), has_status(204));
}

// A read holds many blocks for a lease's time, and then only those that it sends next.
TEST_F(SecurityTest, SlowReadHoldsFewBlocksAfterALeaseTime) {
  constexpr int kBlocks = 32;
  constexpr std::size_t kBytes = 1 << 20;
  const json body = {{"layout",
                      {{"num_layers", 1},
                       {"outer_dim", 1},
                       {"page_size", 16},
                       {"inner_dim", kBytes / 32},
                       {"dtype_width_bytes", 2}}},
                     {"tiers", {{"pinned", {{"num_blocks", kBlocks}}}}},
                     {"default_lease_ms", 1}};
  const std::string path = "/v1/caches/slow";
  ASSERT_TRUE(
      as(kAdmin,
         {.method = "PUT", .target = path, .body = body.dump(), .content_type = "application/json"})
          .ok());
  const auto bytes = [&](int n) { return std::string(kBytes, static_cast<char>('a' + n % 26)); };
  for (int n = 0; n < kBlocks; ++n) {
    ASSERT_EQ(
        as(kAdmin, {.method = "PUT",
                    .target = path + "/keys/" + key(n) + (n == 0 ? "" : "?parent=" + key(n - 1)),
                    .body = bytes(n),
                    .content_type = "application/octet-stream"})
            .status,
        201U);
  }
  RawConnection reader(server().endpoint());
  const std::string wanted = json{{"keys", keys(0, kBlocks)}}.dump();
  reader.send(head_text("POST", path + "/read",
                        {"Authorization: Bearer " + kPeer, "Content-Type: application/json",
                         "Content-Length: " + std::to_string(wanted.size())}) +
              wanted);
  std::string got;
  EXPECT_TRUE(eventually([&] {
    got += reader.receive_some();
    return post_as(kWriter, path + "/allocate", {{"count", kBlocks - 8}, {"lease_ms", 30'000}})
        .ok();
  }));
  got += reader.receive_to_end();
  got.erase(0, got.find("\r\n\r\n") + 4);
  EXPECT_LT(got.size(), kBlocks * kBytes) << "some blocks had gone, so the read must fail";
  for (std::size_t at = 0; at < got.size(); at += kBytes) {
    const std::string block = got.substr(at, kBytes);
    EXPECT_EQ(block, bytes(static_cast<int>(at / kBytes)).substr(0, block.size())) << at / kBytes;
  }
  EXPECT_THAT(as(kAdmin, {.method = "DELETE", .target = path + "?force=true"}), has_status(204));
}

TEST_F(SecurityTest, ReloadsTokensOnSighupAndKeepsThemIfBroken) {
  const std::string fresh = "fresh-fresh-fresh-fresh";
  EXPECT_THAT(get_as(fresh, "/v1/caches"), is_problem(401));
  json more = all_tokens();
  more.push_back(token(fresh, "read"));
  write_tokens(more);
  ::kill(server().pid(), SIGHUP);
  EXPECT_TRUE(eventually([&] { return get_as(fresh, "/v1/caches").ok(); }));

  std::ofstream(tokens_path()) << "{\"tokens\": ";
  ::kill(server().pid(), SIGHUP);
  EXPECT_TRUE(eventually(
      [] { return server().output().find("tokens stay as they were") != std::string::npos; }));
  EXPECT_TRUE(get_as(fresh, "/v1/caches").ok());

  write_tokens(all_tokens());
  ::kill(server().pid(), SIGHUP);
  EXPECT_TRUE(eventually([&] { return get_as(fresh, "/v1/caches").status == 401; }));
  EXPECT_EQ(server().output().find(fresh), std::string::npos) << "a token is never logged";
}

// A removed or restricted token gets no more events.
TEST_F(SecurityTest, EndsTheStreamsOfATokenThatLostRights) {
  const std::string leaver = "leaver-leaver-leaver-leaver";
  const std::string mover = "mover-mover-mover-mover-mover";
  const std::string stayer = "stayer-stayer-stayer-stayer";
  const auto confined = [](const std::string& text, const std::string& role,
                           const std::vector<std::string>& caches) {
    json made = token(text, role);
    if (!caches.empty()) made["caches"] = caches;
    return made;
  };
  const auto listen = [&](const std::string& who, const std::string& query = "") {
    return EventListener(server().endpoint(), query, {"Authorization: Bearer " + who});
  };
  json before = all_tokens();
  for (const json& more : {confined(leaver, "read", {}), confined(mover, "read", {"mine", "other"}),
                           confined(stayer, "read", {"mine"})}) {
    before.push_back(more);
  }
  write_tokens(before);
  ::kill(server().pid(), SIGHUP);
  ASSERT_TRUE(eventually([&] { return get_as(stayer, "/v1/caches").ok(); }));
  EventListener gone = listen(leaver);
  EventListener confined_since = listen(kReader);
  EventListener moved = listen(mover);
  EventListener lesser = listen(kWriter);
  EventListener staying = listen(stayer);
  EXPECT_THAT(staying.head(), HasSubstr("200 OK"));

  json after = json::array();
  for (json each : all_tokens()) {
    if (each.at("name") == "reader") each["caches"] = {"mine"};
    if (each.at("name") == "writer") each["role"] = "metrics";
    after.push_back(each);
  }
  after.push_back(confined(mover, "read", {"mine"}));
  after.push_back(confined(stayer, "write", {"mine", "other"}));
  write_tokens(after);
  ::kill(server().pid(), SIGHUP);
  for (EventListener* ended : {&gone, &confined_since, &moved, &lesser}) {
    EXPECT_EQ(ended->next().name, "");
  }
  ASSERT_TRUE(put_cache_as(kAdmin, "mine").ok());
  ASSERT_THAT(put_key_as(kAdmin, "mine", 77), has_status(201));
  EXPECT_EQ(staying.next().data.at("keys"), json::array({key(77)}));
  write_tokens(all_tokens());
  ::kill(server().pid(), SIGHUP);
  ASSERT_TRUE(eventually([&] { return get_as(stayer, "/v1/caches").status == 401; }));
}

std::optional<int> exit_of(std::vector<std::string> flags) {
  flags.insert(flags.begin(), CAIRN_SERVER_PROGRAM);
  ChildProcess program(flags);
  return program.wait();
}

TEST(SecurityStart, RefusesInsecureSettings) {
  const fakes::TempDir folder;
  EXPECT_EQ(exit_of({"--listen", "0.0.0.0:0", "--data-dir", folder.path().string()}), 2);
  EXPECT_EQ(exit_of({"--tokens", "/nowhere/tokens", "--data-dir", folder.path().string()}), 2);
  EXPECT_EQ(exit_of({"--tls-cert", "/nowhere/c", "--tls-key", "/nowhere/k", "--data-dir",
                     folder.path().string()}),
            2);
}

class TlsServed : public testing::Test {
 protected:
  TlsServed() {
    std::ofstream(folder_.path() / "config") << R"({"caches": []})";
    start({});
  }
  void start(const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--config",   (folder_.path() / "config").string(),
                                      "--tls-cert", served_.certificate,
                                      "--tls-key",  served_.key};
    flags.insert(flags.end(), more.begin(), more.end());
    server_ = std::make_unique<ServerProcess>(ServerSetup{.flags = flags});
  }
  // The result of one of our programs, which trusts the authority.
  struct Ended {
    std::optional<int> code;
    std::string out;
    std::string err;
  };
  Ended ended(const std::string& program, const std::vector<std::string>& more) const {
    std::vector<std::string> command = {program, "--server", "https://127.0.0.1:" + port(), "--ca",
                                        authority_.certificate};
    command.insert(command.end(), more.begin(), more.end());
    ChildProcess child(command);
    const auto code = child.wait();
    return {code, child.standard_output(), child.standard_error()};
  }
  // The program's exit code; nullopt if it is not installed.
  static std::optional<int> run(const std::string& program, const std::string& arguments) {
    if (std::system(("command -v " + program + " >/dev/null").c_str()) != 0) return std::nullopt;
    return WEXITSTATUS(std::system((program + " " + arguments).c_str()));
  }
  std::string port() const {
    const std::string authority = server_->endpoint().authority();
    return authority.substr(authority.rfind(':') + 1);
  }
  std::string read_output() const {
    std::ifstream file(folder_.path() / "out");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string output_path() const { return (folder_.path() / "out").string(); }

  fakes::TempDir folder_;
  const fakes::CertificateFiles authority_ =
      fakes::make_certificate(folder_.path(), {.name = "authority"});
  const fakes::CertificateFiles served_ =
      fakes::make_certificate(folder_.path(), {.name = "server", .authority = authority_});
  std::unique_ptr<ServerProcess> server_;
};

TEST_F(TlsServed, AnswersOverTls) {
  fakes::TlsClient client(
      {.port = static_cast<std::uint16_t>(std::stoi(port())), .authority = authority_.certificate});
  ASSERT_TRUE(client.connected());
  ASSERT_TRUE(client.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  EXPECT_THAT(client.receive_response(), EndsWith(R"({"status":"ok"})"));
}

TEST_F(TlsServed, AnswersCurl) {
  const auto code =
      run("curl", "-sS --cacert '" + authority_.certificate + "' https://localhost:" + port() +
                      "/healthz -o '" + output_path() + "'");
  if (!code) GTEST_SKIP() << "curl is not installed";
  EXPECT_EQ(*code, 0);
  EXPECT_EQ(read_output(), R"({"status":"ok"})");
  EXPECT_NE(*run("curl", "-s https://localhost:" + port() + "/healthz -o /dev/null"), 0)
      << "no authority vouches for the certificate";
}

TEST_F(TlsServed, ServesTheCommandLineAndTheReplayer) {
  const Ended caches = ended(CAIRN_CTL_PROGRAM, {"caches", "list", "--json"});
  EXPECT_EQ(caches.code, 0) << caches.err;
  EXPECT_THAT(caches.out, HasSubstr("\"caches\""));
  // Write and compare blocks of many TLS records.
  const Ended replay = ended(
      CAIRN_REPLAY_PROGRAM,
      {"--json", "--generate", "chat", "--requests", "20", "--connections", "2", "--block-bytes",
       "262144", "--device-blocks", "8", "--pinned-blocks", "16", "--disk-blocks", "16"});
  EXPECT_EQ(replay.code, 0) << replay.err;
  EXPECT_EQ(json::parse(replay.out, nullptr, false).value("wrong_bytes", -1), 0) << replay.out;
}

TEST_F(TlsServed, CommandLineRefusesAWrongCertificate) {
  const auto refusal = [](const std::vector<std::string>& flags) {
    std::vector<std::string> command = {CAIRN_CTL_PROGRAM, "caches", "list"};
    command.insert(command.end(), flags.begin(), flags.end());
    ChildProcess child(command);
    const auto code = child.wait();
    return std::pair(code, child.standard_error());
  };
  const auto other = fakes::make_certificate(folder_.path(), {.name = "stranger"}).certificate;
  const std::string url = "https://127.0.0.1:" + port();
  for (const auto& [flags, why] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--server", url}, "certificate is not accepted"},
           {{"--server", url, "--ca", other}, "certificate is not accepted"},
           {{"--server", "https://127.0.0.2:" + port(), "--ca", authority_.certificate}, ""},
           {{"--server", url, "--ca", "/nowhere"}, "'/nowhere' cannot be used"}}) {
    const auto [code, text] = refusal(flags);
    EXPECT_EQ(code, 3) << text;
    EXPECT_THAT(text, HasSubstr(why));
  }
}

TEST_F(TlsServed, RequiresClientCertificates) {
  start({"--tls-client-ca", authority_.certificate});
  const auto own =
      fakes::make_certificate(folder_.path(), {.name = "client", .authority = authority_});
  const Ended known =
      ended(CAIRN_CTL_PROGRAM, {"caches", "list", "--cert", own.certificate, "--key", own.key});
  EXPECT_EQ(known.code, 0) << known.err;
  EXPECT_EQ(ended(CAIRN_CTL_PROGRAM, {"caches", "list"}).code, 3);
}

TEST_F(TlsServed, AcceptsOpensslFromTls12On) {
  const auto connect = [this](const std::string& version) {
    return run("openssl", "s_client -connect 127.0.0.1:" + port() + " -CAfile '" +
                              authority_.certificate + "' -verify_return_error " + version +
                              " </dev/null >'" + output_path() + "' 2>&1");
  };
  const auto code = connect("-tls1_3");
  if (!code) GTEST_SKIP() << "openssl is not installed";
  EXPECT_EQ(*code, 0) << read_output();
  EXPECT_THAT(read_output(), HasSubstr("Verify return code: 0"));
  EXPECT_EQ(*connect("-tls1_2"), 0) << read_output();
  EXPECT_NE(*connect("-tls1_1"), 0) << read_output();
}

// Committing an unwritten slot must not publish its old bytes. Only a client that may map the tier
// can have written it in place.
TEST_F(SecurityTest, CommitOfAnUnwrittenExportedSlotNeedsAdmin) {
  const std::string cache = "/v1/caches/mapped";
  EXPECT_THAT(put_cache_as(kAdmin, "mapped"), has_status(201));
  // A commit of a slot that nobody wrote.
  const auto unwritten = [&](int n) -> json {
    const json slots = post_as(kWriter, cache + "/allocate", {{"count", 1}}).document();
    return {{"lease", slots.at("lease")},
            {"blocks", {TestCache::commit_block(slots.at("blocks").at(0), n)}}};
  };
  EXPECT_THAT(post_as(kWriter, cache + "/commit", unwritten(1)), has_status(200));
  EXPECT_EQ(get_as(kReader, cache + "/keys/" + key(1)).body, std::string(kBlockBytes, '\0'));

  for (const std::string& token : {kReader, kWriter}) {
    EXPECT_THAT(post_as(token, cache + "/tiers/pinned/export", json::object()),
                is_problem(403, "forbidden"));
  }
  EXPECT_THAT(post_as(kAdmin, cache + "/tiers/pinned/export", json::object()), has_status(200));
  const json body = unwritten(2);
  EXPECT_THAT(post_as(kWriter, cache + "/commit", body), is_problem(403, "forbidden"));
  EXPECT_THAT(get_as(kReader, cache + "/keys/" + key(2)), is_problem(404, "unknown_key"));
  EXPECT_THAT(post_as(kAdmin, cache + "/commit", body), has_status(200));
  // A client that sends its bytes is not affected.
  EXPECT_THAT(put_key_as(kWriter, "mapped", 3), has_status(201));
  EXPECT_TRUE(get_as(kReader, cache + "/keys/" + key(3)).body == block(3));
}

}  // namespace
}  // namespace cairn::e2e
