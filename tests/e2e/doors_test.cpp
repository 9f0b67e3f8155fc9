// A foreign web page, or a foreign host name that leads to the server, cannot harm it.
#include <openssl/evp.h>

#include "tests/e2e/support/raw_connection.hpp"
#include "tests/e2e/support/served_test.hpp"

namespace cairn::e2e {
namespace {

using testing::HasSubstr;
using testing::Not;

class DoorsTest : public ServedTest {
 protected:
  static void SetUpTestSuite() { start({"--allowed-hosts", "cairn.example,*.pods.example"}); }

  // Sends one request on a separate connection, with only these fields.
  static Reply ask(const std::string& method, const std::string& target,
                   const std::vector<std::string>& fields, const std::string& body = "") {
    std::string text = method + " " + target + " HTTP/1.1\r\n";
    for (const std::string& field : fields) text += field + "\r\n";
    if (!body.empty()) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    RawConnection connection(server().endpoint());
    connection.send(text + "\r\n" + body);
    return connection.receive();
  }
  static std::string own_host() { return "Host: " + server().endpoint().authority(); }
};

TEST_F(DoorsTest, RefusesAForeignHostName) {
  for (const std::string& own :
       {server().endpoint().authority(), std::string("localhost"), std::string("[::1]:7070"),
        std::string("cairn.example:7070"), std::string("a.pods.example")}) {
    EXPECT_THAT(ask("GET", "/v1/caches", {"Host: " + own}), has_status(200)) << own;
  }
  for (const char* foreign : {"evil.example", "10.1.2.3:7070", "pods.example", ""}) {
    for (const char* target : {"/v1/caches", "/healthz", "/", "/nothing/there"}) {
      EXPECT_THAT(ask("GET", target, {std::string("Host: ") + foreign}),
                  is_problem(421, "unknown_host"))
          << foreign << " " << target;
    }
  }
}

TEST_F(DoorsTest, RefusesChangesByAForeignPage) {
  TestCache cache(rest_, {.pinned = 4});
  cache.store(1);
  const std::string json_type = "Content-Type: application/json";
  for (const char* sign :
       {"Origin: http://evil.example", "Origin: null", "Origin: http://localhost:3000",
        "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site"}) {
    const std::vector<std::string> fields = {own_host(), sign, json_type};
    EXPECT_THAT(ask("POST", cache.path("/clear"), fields, "{}"), is_problem(403, "cross_site"));
    EXPECT_THAT(ask("DELETE", cache.path(), fields), is_problem(403, "cross_site"));
    EXPECT_THAT(ask("PUT", cache.key_path(2), {own_host(), sign}, block(2)),
                is_problem(403, "cross_site"));
    EXPECT_THAT(ask("GET", cache.path(), fields), has_status(200))
        << "the browser does not let the page read it";
  }
  cache.expect_intact(1);
  const std::string own = "Origin: http://" + server().endpoint().authority();
  EXPECT_THAT(ask("POST", cache.path("/clear"),
                  {own_host(), own, "Sec-Fetch-Site: same-origin", json_type}, "{}"),
              has_status(200));
  EXPECT_FALSE(cache.holds(1));
}

// Forms, beacons and fetches without CORS send these types without asking the server first.
TEST_F(DoorsTest, RefusesBodyTypesThatAnyPageMaySend) {
  TestCache cache(rest_, {.pinned = 4});
  cache.store(1);
  const std::string unsupported = "unsupported_media_type";
  for (const std::string type : {"", "Content-Type: text/plain;charset=UTF-8",
                                 "Content-Type: application/x-www-form-urlencoded",
                                 "Content-Type: multipart/form-data; boundary=x"}) {
    std::vector<std::string> fields = {own_host()};
    if (!type.empty()) fields.push_back(type);
    for (const char* route : {"/clear", "/evict", "/match", "/read", "/allocate", "/transfers",
                              "/tiers/pinned/export"}) {
      EXPECT_THAT(ask("POST", cache.path(route), fields, "{}"), is_problem(415, unsupported))
          << route << " " << type;
    }
    EXPECT_THAT(ask("PUT", cache.key_path(2), fields, block(2)), is_problem(415, unsupported));
    EXPECT_THAT(ask("PUT", "/v1/caches/new", fields, cache_body({.pinned = 1}).dump()),
                is_problem(415, unsupported));
  }
  cache.expect_intact(1);
  EXPECT_FALSE(cache.holds(2));
  EXPECT_THAT(ask("POST", cache.path("/clear"), {own_host(), "Content-Length: 0"}), has_status(200))
      << "a request without a body needs no type";
  EXPECT_FALSE(cache.holds(1));
}

TEST_F(DoorsTest, ResponsesForbidUseByOtherSites) {
  for (const char* target : {"/", "/v1/caches", "/metrics", "/openapi.json", "/nothing"}) {
    const Reply reply = rest_.get(target);
    EXPECT_EQ(reply.header("X-Content-Type-Options"), "nosniff") << target;
    EXPECT_EQ(reply.header("Cross-Origin-Resource-Policy"), "same-origin") << target;
    EXPECT_EQ(reply.header("Access-Control-Allow-Origin"), "") << target;
  }
  EXPECT_EQ(ask("OPTIONS", "/v1/caches",
                {own_host(), "Origin: http://evil.example", "Access-Control-Request-Method: PUT"})
                .status,
            405u);
}

// The source in a policy for the text between <tag> and </tag>.
std::string source_of(const std::string& page, const std::string& tag) {
  const std::size_t begin = page.find("<" + tag + ">") + tag.size() + 2;
  const std::string content = page.substr(begin, page.find("</" + tag + ">") - begin);
  unsigned char digest[32];
  EVP_Digest(content.data(), content.size(), digest, nullptr, EVP_sha256(), nullptr);
  unsigned char base64[64];
  const int length = EVP_EncodeBlock(base64, digest, sizeof digest);
  return "'sha256-" +
         std::string(reinterpret_cast<char*>(base64), static_cast<std::size_t>(length)) + "'";
}

TEST_F(DoorsTest, PolicyAllowsOnlyThePagesOwnScript) {
  const Reply page = rest_.get("/");
  const std::string policy = page.header("Content-Security-Policy");
  EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
  EXPECT_THAT(policy, HasSubstr("script-src " + source_of(page.body, "script")));
  EXPECT_THAT(policy, HasSubstr("style-src " + source_of(page.body, "style")));
  EXPECT_THAT(policy, HasSubstr("frame-ancestors 'none'"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  EXPECT_EQ(page.header("Referrer-Policy"), "no-referrer");
  EXPECT_THAT(page.body, Not(HasSubstr(" style=")));
  EXPECT_THAT(page.body, Not(testing::ContainsRegex(" on[a-z]+=\"")));
}

// An export changes what a commit means, so a link must not start one.
TEST_F(DoorsTest, ExportsATierByPostOnly) {
  TestCache cache(rest_, {.pinned = 1});
  const Reply reply = rest_.get(cache.path("/tiers/pinned/export"));
  EXPECT_THAT(reply, is_problem(405, "method_not_allowed"));
  EXPECT_EQ(reply.header("Allow"), "POST");
  EXPECT_THAT(rest_.send({.method = "POST", .target = cache.path("/tiers/pinned/export")}),
              has_status(200));
}

}  // namespace
}  // namespace cairn::e2e
