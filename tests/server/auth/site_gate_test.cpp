#include "server/auth/site_gate.hpp"

#include <gtest/gtest.h>

namespace cairn {
namespace {

// A request over a connection that was made to 192.0.2.7.
struct Asked {
  http::Method method = http::Method::get;
  std::optional<std::string> host = "localhost:7070";
  std::string origin = {};
  std::string sec_fetch_site = {};
  bool over_unix = false;
};

// The code of the refusal; empty if the request is accepted.
std::string refusal(const SiteGate& gate, const Asked& asked) {
  http::ConnectionEnds ends{.local_address = "192.0.2.7", .remote = "192.0.2.9:4711"};
  if (asked.over_unix) ends = {.remote = "unix", .uid = 0};
  http::RequestHead head;
  head.ends = &ends;
  head.method = asked.method;
  if (asked.host) head.host = *asked.host;
  head.origin = asked.origin;
  head.sec_fetch_site = asked.sec_fetch_site;
  const auto checked = gate.check(head);
  return checked ? "" : std::string(to_string(checked.error().code));
}

std::string refusal_of_host(const SiteGate& gate, const std::string& host) {
  return refusal(gate, {.host = host});
}

TEST(SiteGate, AcceptsLoopbackNamesAndItsOwnAddress) {
  const SiteGate gate({});
  for (const char* own : {"localhost", "LOCALHOST:80", "localhost.", "127.0.0.1", "127.0.0.1:7070",
                          "127.255.3.1", "[::1]", "[::1]:7070", "192.0.2.7", "192.0.2.7:8080"}) {
    EXPECT_EQ(refusal_of_host(gate, own), "") << own;
  }
}

TEST(SiteGate, RefusesUnknownHosts) {
  const SiteGate gate({});
  for (const char* foreign :
       {"", "evil.example", "evil.example:7070", "localhost.evil.example", "127.0.0.1.evil.example",
        "192.0.2.8", "128.0.0.1", "[::2]", "localhost:70700", "localhost:x", "[", "]", ":7070",
        "127.1", "[::1"}) {
    EXPECT_EQ(refusal_of_host(gate, foreign), "unknown_host") << foreign;
  }
  EXPECT_EQ(refusal_of_host(gate, std::string(10'000, 'a')), "unknown_host");
}

TEST(SiteGate, RefusesMalformedHosts) {
  for (const bool over_unix : {false, true}) {
    for (const char* wrong : {"x@localhost", "local host", "localhost/x", "a?b", "h\xc3\xb6st"}) {
      EXPECT_EQ(refusal(SiteGate({"*"}), {.host = wrong, .over_unix = over_unix}), "malformed")
          << wrong;
    }
  }
}

TEST(SiteGate, AcceptsConfiguredNames) {
  const SiteGate gate({"cairn", "*.cache.example", "2001:db8::1"});
  for (const char* own :
       {"cairn:7070", "Cairn", "a.cache.example", "b.a.cache.example:1", "[2001:DB8:0::1]:7070"}) {
    EXPECT_EQ(refusal_of_host(gate, own), "") << own;
  }
  for (const char* foreign : {"cairns", "cache.example", ".cache.example", "xcache.example"}) {
    EXPECT_EQ(refusal_of_host(gate, foreign), "unknown_host") << foreign;
  }
  EXPECT_EQ(refusal_of_host(SiteGate({"*"}), "whatever.example"), "");
}

TEST(SiteGate, AcceptsAnyHostFromUnixSocketsAndNoneFromOldClients) {
  const SiteGate gate({});
  EXPECT_EQ(refusal(gate, {.host = "evil.example", .over_unix = true}), "");
  EXPECT_EQ(refusal(gate, {.method = http::Method::post, .host = std::nullopt}), "");
}

TEST(SiteGate, AllowsChangesOnlyFromItsOwnOrigin) {
  const SiteGate gate({"cairn.example"});
  struct Case {
    const char* host;
    const char* origin;
    bool own;
  };
  constexpr Case kCases[] = {
      {"localhost:7070", "http://localhost:7070", true},
      {"LOCALHOST:7070", "http://localhost:7070", true},
      {"[::1]:7070", "http://[::1]:7070", true},
      {"cairn.example", "https://cairn.example", true},
      {"cairn.example:443", "https://cairn.example", true},
      {"cairn.example", "http://cairn.example:80", true},
      {"localhost:7070", "http://localhost:3000", false},
      {"localhost:7070", "http://localhost", false},
      {"localhost:7070", "http://127.0.0.1:7070", false},
      {"localhost:7070", "http://evil.example", false},
      {"localhost:7070", "http://localhost:7070.evil.example", false},
      {"localhost:7070", "null", false},
      {"localhost:7070", "file://localhost:7070", false},
      {"localhost:7070", "localhost:7070", false},
      {"cairn.example", "https://cairn.example:8443", false},
  };
  for (const Case& one : kCases) {
    for (const auto method :
         {http::Method::post, http::Method::put, http::Method::delete_, http::Method::other}) {
      EXPECT_EQ(refusal(gate, {.method = method, .host = one.host, .origin = one.origin}),
                one.own ? "" : "cross_site")
          << one.host << " from " << one.origin;
    }
    EXPECT_EQ(refusal(gate, {.host = one.host, .origin = one.origin}), "")
        << "reading is always allowed";
  }
}

TEST(SiteGate, ChecksSecFetchSite) {
  const SiteGate gate({});
  for (const char* foreign : {"cross-site", "same-site", "whatever"}) {
    EXPECT_EQ(refusal(gate, {.method = http::Method::post, .sec_fetch_site = foreign}),
              "cross_site");
    EXPECT_EQ(refusal(gate, {.sec_fetch_site = foreign}), "");
  }
  for (const char* own : {"same-origin", "none"}) {
    EXPECT_EQ(refusal(gate, {.method = http::Method::post, .sec_fetch_site = own}), "");
  }
}

// A proxy may bring a browser's request to the Unix socket.
TEST(SiteGate, RefusesAForeignPageOverAUnixSocketToo) {
  EXPECT_EQ(refusal(SiteGate({}), {.method = http::Method::post,
                                   .host = "cairn.example",
                                   .origin = "http://evil.example",
                                   .over_unix = true}),
            "cross_site");
}

TEST(AllowedHost, IsANameAnAddressOrAPattern) {
  for (const char* right : {"cairn", "a-b.example", "*.example", "*", "192.0.2.1", "2001:db8::1"}) {
    EXPECT_TRUE(is_allowed_host_form(right)) << right;
  }
  for (const char* wrong : {"", "cairn:7070", "Cairn", "http://cairn", "*cairn", "a.*", "*.",
                            "[::1]", "a b", "2001:DB8::1"}) {
    EXPECT_FALSE(is_allowed_host_form(wrong)) << wrong;
  }
}

}  // namespace
}  // namespace cairn
