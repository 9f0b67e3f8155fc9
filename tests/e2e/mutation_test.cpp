#include <random>
#include <set>

#include "tests/e2e/support/raw_connection.hpp"
#include "tests/e2e/support/unharmed_test.hpp"

// Valid requests with something changed at random.
namespace cairn::e2e {
namespace {

// CAIRN_TEST_SEED sets another seed; the default is fixed.
unsigned seed() {
  const char* given = std::getenv("CAIRN_TEST_SEED");
  return given == nullptr ? 20'260'101U : static_cast<unsigned>(std::atoi(given));
}

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  std::size_t below(std::size_t bound) {
    return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random_);
  }
  template <class T>
  const T& one_of(const std::vector<T>& list) {
    return list[below(list.size())];
  }

  // Changes, drops, doubles or inserts a few bytes.
  std::string bytes(std::string text) {
    for (std::size_t changes = 1 + below(3); changes > 0 && !text.empty(); --changes) {
      const std::size_t at = below(text.size());
      switch (below(5)) {
        case 0:
          text[at] = static_cast<char>(below(256));
          break;
        case 1:
          text.erase(at, 1 + below(8));
          break;
        case 2:
          text.insert(at, text.substr(at, 1 + below(8)));
          break;
        case 3:
          text.insert(at, 1, "{}[]\",:0-.eE \\"[below(13)]);
          break;
        default:
          text.resize(at);
      }
    }
    return text;
  }
  // Replaces a number with another value.
  std::string number(std::string text) {
    static const std::vector<std::string> kValues = {"0",
                                                     "-1",
                                                     "1",
                                                     "1.5",
                                                     "1e400",
                                                     "-0",
                                                     "4294967295",
                                                     "4294967296",
                                                     "18446744073709551615",
                                                     "18446744073709551616",
                                                     "9223372036854775807",
                                                     "true",
                                                     "null",
                                                     "\"1\"",
                                                     "[]",
                                                     "{}"};
    std::vector<std::size_t> starts;
    for (std::size_t i = 1; i < text.size(); ++i) {
      if (text[i - 1] == ':' && std::isdigit(static_cast<unsigned char>(text[i])) != 0) {
        starts.push_back(i);
      }
    }
    if (starts.empty()) return bytes(std::move(text));
    const std::size_t at = one_of(starts);
    const std::size_t end = text.find_first_not_of("0123456789", at);
    return text.replace(at, end - at, one_of(kValues));
  }
  // Keeps only the characters that a request line may have: others would make another request.
  std::string target(const std::string& text) {
    std::string changed = bytes(text);
    std::erase_if(changed, [](char c) { return c <= ' ' || c >= 127; });
    if (changed.empty() || changed.front() != '/') changed.insert(0, "/");
    return changed;
  }

 private:
  std::mt19937_64 random_;
};

class MutationTest : public UnharmedTest {
 protected:
  // Requests of every route against a cache that may be lost. The fixture's own cache must stay
  // unharmed.
  std::vector<Request> corpus(TestCache& victim) {
    const std::string json_type = "application/json", bytes_type = "application/octet-stream";
    const json held = victim.allocate(1, "device");
    const std::string lease = held.at("lease");
    const json& handle = held.at("blocks").at(0);
    const std::string keys_text = json{{"keys", keys(1, 3)}}.dump();
    const auto post = [&](const std::string& route, const json& body) {
      return Request{"POST", victim.path(route), body.dump(), json_type};
    };
    return {
        post("/match", {{"keys", keys(1, 3)}, {"lease_ms", 50}}),
        post("/match", {{"tokens", {1, 2, 3, 4}}, {"salt", "s"}, {"lease_ms", 0}}),
        post("/match",
             {{"keys", keys(1, 3)}, {"lease_ms", 50}, {"onboard", "device"}, {"wait_ms", 5}}),
        {"POST", victim.path("/match?key_bytes=16&lease_ms=50"), packed(keys(1, 3)), bytes_type},
        post("/allocate", {{"count", 1}, {"tier", "pinned"}, {"lease_ms", 50}, {"priority", 5}}),
        post("/commit", {{"lease", lease}, {"blocks", {TestCache::commit_block(handle, 5)}}}),
        {"PUT", victim.data_path(handle, lease, "&layer=1&outer=0"), region(5, 1, 0), bytes_type},
        {"PUT", victim.data_path(handle, lease), block(5), bytes_type},
        {"PUT", victim.key_path(6, "?tier=disk&ttl_ms=5000&parent=" + key(1)), block(6),
         bytes_type},
        {"GET", victim.key_path(1, "?layer=1&outer=1")},
        {"HEAD", victim.key_path(2)},
        {"DELETE", victim.key_path(3)},
        {"GET", victim.key_path(1), "", "", {{"Range", "bytes=5-90"}}},
        {"GET", victim.key_path(1), "", "", {{"If-None-Match", "\"a\", W/\"b\""}}},
        {"PUT", victim.key_path(1) + "/metadata", "{\"a\":{\"b\":[1,2]}}", json_type},
        {"GET", victim.key_path(1) + "/metadata"},
        {"POST", victim.path("/read"), keys_text, json_type},
        {"POST", victim.path("/write"),
         write_body({{"keys", keys(6, 2)}, {"parents", {nullptr, key(6)}}}, blocks(6, 2)),
         bytes_type},
        post("/transfers", {{"keys", keys(1, 1)},
                            {"to", "disk"},
                            {"mode", "copy"},
                            {"priority", 1},
                            {"wait_ms", 5}}),
        {"GET", "/v1/transfers/t-1?wait_ms=5"},
        {"DELETE", "/v1/transfers/t-1"},
        post("/evict", {{"keys", keys(1, 2)}, {"tier", "device"}}),
        post("/clear", {{"tier", "device"}}),
        {"GET", victim.path("/blocks?tier=disk&state=evictable&limit=5&cursor=1")},
        {"POST", "/v1/leases/" + lease + "/renew", "{\"lease_ms\":500}", json_type},
        {"POST", "/v1/leases/" + lease + "/release", json{{"blocks", {handle, handle}}}.dump(),
         json_type},
        {"GET", "/v1/caches"},
        {"GET", victim.path()},
        {"GET", "/v1/system"},
        {"POST", victim.path("/tiers/device/export")},
    };
  }

  // Checks every status that the server has counted: no client may cause a server fault.
  void expect_no_server_fault() {
    const client::Metrics metrics = client::Metrics::parse(rest_.get("/metrics").body);
    for (const auto& [series, value] : metrics.samples()) {
      if (!series.starts_with("cairn_http_requests_total") || value == 0) continue;
      const std::size_t at = series.find("code=\"5");
      if (at == std::string::npos) continue;
      const std::string code = series.substr(at + 6, 3);
      EXPECT_TRUE(code == "501" || code == "503" || code == "505" || code == "507") << series;
    }
  }
};

TEST_F(MutationTest, MutatedRequestsGetAResponseAndDoNoHarm) {
  const unsigned used = seed();
  SCOPED_TRACE("seed " + std::to_string(used));
  Mutator mutate(used);
  TestCache victim(rest_, {.device = 4, .pinned = 4, .disk = 4, .layout = "first"});
  for (int n = 1; n <= 3; ++n) victim.store(n, std::string("?tier=") + kTierNames[n - 1]);
  const std::vector<Request> originals = corpus(victim);
  const std::vector<std::string> methods = {"GET",  "PUT",     "POST",  "DELETE",
                                            "HEAD", "OPTIONS", "PATCH", "TRACE"};
  const std::vector<std::string> types = {"", "application/json", "application/msgpack",
                                          "application/octet-stream", "text/plain"};
  constexpr int kRequests = 2'000;
  for (int i = 0; i < kRequests; ++i) {
    Request request = mutate.one_of(originals);
    switch (mutate.below(8)) {
      case 0:
        request.method = mutate.one_of(methods);
        break;
      case 1:
        request.target = mutate.target(request.target);
        break;
      case 2:
        request.content_type = mutate.one_of(types);
        break;
      case 3:
        request.body = mutate.one_of(originals).body;
        break;
      case 4:
      case 5:
        request.body = mutate.number(request.body);
        break;
      default:
        request.body = mutate.bytes(request.body);
    }
    const Reply reply = rest_.send(request);
    const bool fine = (reply.status >= 200 && reply.status < 500) || reply.status == 501 ||
                      reply.status == 503 || reply.status == 507;
    ASSERT_TRUE(fine) << "request " << i << ": " << request.method << " " << request.target << " "
                      << request.body.substr(0, 300) << "\n"
                      << testing::PrintToString(reply) << server().output();
    if (reply.status >= 400 && request.method != "HEAD") {
      EXPECT_THAT(reply, is_problem(reply.status)) << "request " << i;
    }
  }
  expect_no_server_fault();
  // The requests pinned blocks only for a moment.
  rest_.del(victim.path("?force=true"));
}

TEST_F(MutationTest, MutatedRawTextDoesNoHarm) {
  const unsigned used = seed();
  SCOPED_TRACE("seed " + std::to_string(used));
  Mutator mutate(used);
  TestCache victim(rest_, {.device = 4, .pinned = 4, .disk = 4});
  for (int n = 1; n <= 3; ++n) victim.store(n, std::string("?tier=") + kTierNames[n - 1]);
  const std::vector<Request> originals = corpus(victim);
  constexpr int kRequests = 600;
  for (int i = 0; i < kRequests; ++i) {
    const Request& original = mutate.one_of(originals);
    std::vector<std::string> fields = {"Content-Length: " + std::to_string(original.body.size())};
    if (!original.content_type.empty()) fields.push_back("Content-Type: " + original.content_type);
    RawConnection client(server().endpoint());
    client.send(mutate.bytes(head_text(original.method, original.target, fields) + original.body));
    // The connection closes, whether the request was complete or not.
  }
  EXPECT_THAT(rest_.get("/healthz"), has_status(200));
  expect_no_server_fault();
  rest_.del(victim.path("?force=true"));
}

}  // namespace
}  // namespace cairn::e2e
