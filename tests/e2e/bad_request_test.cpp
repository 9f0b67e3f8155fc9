#include "tests/e2e/support/raw_connection.hpp"
#include "tests/e2e/support/unharmed_test.hpp"

// Requests whose bodies, queries, methods, paths, types or handles are wrong.
namespace cairn::e2e {
namespace {

class BadRequestTest : public UnharmedTest {
 protected:
  struct Held {
    std::string lease;
    json handle;
  };
  // Allocates one slot for requests that must be refused.
  Held hold(const std::string& tier = "device") {
    const json allocation = cache_.allocate(1, tier);
    keep();
    return {allocation.at("lease"), allocation.at("blocks").at(0)};
  }
  Reply release(const std::string& lease, const json& handle) {
    return rest_.post("/v1/leases/" + lease + "/release", {{"blocks", json::array({handle})}});
  }
  static json other_generation(json handle) {
    handle["generation"] = handle["generation"].get<int>() + 1;
    return handle;
  }
  Reply commit(const std::string& lease, const json& handle) {
    return rest_.post(cache_.path("/commit"),
                      {{"lease", lease}, {"blocks", {TestCache::commit_block(handle, 9)}}});
  }
};

class BadLengthTest : public BadRequestTest, public testing::WithParamInterface<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Bytes, BadLengthTest,
                         testing::Values(0, 1, kBlockBytes - 1, kBlockBytes + 1, 100 * kBlockBytes,
                                         std::size_t{5} << 20U));

TEST_P(BadLengthTest, RefusesABlockOfThisLength) {
  const std::string bytes(GetParam(), 'x');
  const unsigned status = GetParam() > kBlockBytes ? 413 : 400;
  const Held held = hold();
  for (const char* tier : kTierNames) {
    EXPECT_THAT(rest_.put_bytes(cache_.key_path(9, std::string("?tier=") + tier), bytes),
                is_problem(status));
  }
  EXPECT_THAT(rest_.put_bytes(cache_.data_path(held.handle, held.lease), bytes),
              is_problem(status));
  EXPECT_THAT(rest_.put_bytes(cache_.data_path(held.handle, held.lease, "&layer=0&outer=0"), bytes),
              is_problem(GetParam() > kRegionBytes ? 413 : 400));
  EXPECT_FALSE(cache_.holds(9));
}

TEST_F(BadRequestTest, RefusesTooMuchMetadata) {
  const json much = {{"text", std::string(4096, 'x')}};
  EXPECT_THAT(rest_.put(cache_.key_path(1, "/metadata"), much), is_problem(413));
  const Held held = hold();
  json block = TestCache::commit_block(held.handle, 9);
  block["metadata"] = much;
  EXPECT_THAT(
      rest_.post(cache_.path("/commit"), {{"lease", held.lease}, {"blocks", json::array({block})}}),
      is_problem(413));
  EXPECT_FALSE(cache_.holds(9));
}

TEST_F(BadRequestTest, RefusesACompressedBody) {
  const auto send = [&](const std::string& method, const std::string& target) {
    return rest_.send({.method = method,
                       .target = target,
                       .body = block(9),
                       .headers = {{"Content-Encoding", "gzip"}}});
  };
  for (const Reply& reply : {send("PUT", cache_.key_path(9)), send("POST", cache_.path("/write")),
                             send("POST", cache_.path("/match"))}) {
    EXPECT_THAT(reply, is_problem(415));
    EXPECT_EQ(reply.header("Accept-Encoding"), "identity");
  }
  EXPECT_FALSE(cache_.holds(9));
}

TEST_F(BadRequestTest, RefusesABatchWriteThatDoesNotMatchItsHeader) {
  const auto write = [&](const std::string& body) {
    return rest_.post_bytes(cache_.path("/write"), body);
  };
  const json two = {{"keys", keys(8, 2)}};
  EXPECT_THAT(write(""), is_problem(400)) << "an empty body";
  EXPECT_THAT(write("abc"), is_problem(400)) << "no length";
  EXPECT_THAT(write(std::string(4, '\0')), is_problem(400)) << "an empty header";
  EXPECT_THAT(write("\xFF\xFF\xFF\xFF{}"), is_refusal()) << "a header of 4 GiB";
  EXPECT_THAT(write(std::string("\x40\0\0\0{}", 6)), is_problem(400)) << "a header beyond the end";
  EXPECT_THAT(write(std::string("\x02\0\0\0[]", 6)), is_problem(400)) << "no object";
  EXPECT_THAT(write(std::string("\x02\0\0\0{}", 6)), is_problem(400)) << "no keys";
  EXPECT_THAT(write(write_body(two, blocks(8, 1))), is_problem(400)) << "a block short";
  EXPECT_THAT(write(write_body(two, blocks(8, 2).substr(1))), is_problem(400)) << "a byte short";
  EXPECT_THAT(write(write_body(two, blocks(8, 2) + "x")), is_refusal()) << "a byte more";
  EXPECT_THAT(write(write_body(two, blocks(8, 3))), is_refusal()) << "a block more";
  EXPECT_THAT(write(write_body({{"keys", {"zz"}}}, block(8))), is_problem(400));
  EXPECT_THAT(write(write_body({{"keys", keys(8, 2)}, {"parents", {nullptr}}}, blocks(8, 2))),
              is_problem(400));
  EXPECT_THAT(write(write_body({{"keys", keys(8, 2)}, {"tier", "tape"}}, blocks(8, 2))),
              is_problem(400));
  EXPECT_THAT(write(write_body({{"keys", keys(8, 2)}, {"more", 1}}, blocks(8, 2))),
              is_problem(400, "unknown_field"));
  EXPECT_FALSE(cache_.holds(8));
  EXPECT_FALSE(cache_.holds(9));
}

TEST_F(BadRequestTest, AnnouncedHeaderTakesNoMemory) {
  constexpr int kStalled = 20;
  const auto taken = [&](const std::string& allocator) {
    return rest_.metric("cairn_allocator_allocated_bytes{allocator=\"" + allocator +
                        "\",device=\"host\"}");
  };
  std::vector<std::unique_ptr<RawConnection>> stalled;
  for (int i = 0; i < kStalled; ++i) {
    stalled.push_back(std::make_unique<RawConnection>(server().endpoint()));
    constexpr std::uint32_t kHeaderBytes = 4u << 20;
    stalled.back()->send(head_text("POST", cache_.path("/write"),
                                   {"Content-Type: application/octet-stream",
                                    "Content-Length: " + std::to_string(kHeaderBytes + 4)}) +
                         std::string("\0\0\x40\0{", 5));
  }
  // Each partial body takes only the smallest buffer.
  EXPECT_TRUE(eventually([&] { return taken("http_small_bodies") >= kStalled * 64; }));
  EXPECT_EQ(taken("http_bodies"), 0);
}

TEST_F(BadRequestTest, AcceptsALongHeaderInPieces) {
  std::string header = json{{"keys", keys(20, 3)}, {"tier", "pinned"}}.dump();
  header.insert(1, std::string(300'000, ' '));
  std::string body;
  for (unsigned shift = 0; shift < 32; shift += 8) {
    body += static_cast<char>((header.size() >> shift) & 0xFFU);
  }
  body += header + blocks(20, 3);
  RawConnection client(server().endpoint());
  client.send(head_text("POST", cache_.path("/write"),
                        {"Content-Type: application/octet-stream",
                         "Content-Length: " + std::to_string(body.size())}));
  for (std::size_t at = 0; at < body.size(); at += 70'000) client.send(body.substr(at, 70'000));
  EXPECT_THAT(client.receive(), has_status(200));
  for (int n = 20; n < 23; ++n) cache_.expect_intact(n);
  keep();
}

TEST_F(BadRequestTest, RefusesAStaleGeneration) {
  const Held held = hold();
  const json stale = other_generation(held.handle);
  EXPECT_THAT(rest_.put_bytes(cache_.data_path(stale, held.lease), block(9)),
              is_problem(409, "stale_generation"));
  EXPECT_THAT(commit(held.lease, stale), is_problem(409, "stale_generation"));
  EXPECT_THAT(release(held.lease, stale), is_problem(409, "stale_generation"));
}

TEST_F(BadRequestTest, RefusesTheGenerationOfAReleasedSlot) {
  Held held = hold();
  const json old = held.handle;
  ASSERT_TRUE(rest_.del("/v1/leases/" + held.lease).ok());
  // The slot now has another generation.
  json again = cache_.allocate(3, "device");
  keep();
  const std::string lease = again.at("lease");
  for (const json& handle : again.at("blocks")) EXPECT_NE(handle, old);
  EXPECT_THAT(rest_.put_bytes(cache_.data_path(old, lease), block(9)),
              is_problem(409, "stale_generation"));
  EXPECT_THAT(commit(lease, old), is_problem(409, "stale_generation"));
}

TEST_F(BadRequestTest, RefusesAForeignLease) {
  const Held mine = hold();
  const Held other = hold();
  EXPECT_THAT(rest_.put_bytes(cache_.data_path(mine.handle, other.lease), block(9)),
              is_problem(409, "foreign_lease"));
  EXPECT_THAT(commit(other.lease, mine.handle), is_problem(409, "foreign_lease"));
  EXPECT_THAT(release(other.lease, mine.handle), is_problem(409, "foreign_lease"));
  EXPECT_FALSE(cache_.holds(9));
}

TEST_F(BadRequestTest, RefusesALeaseOfAnotherCache) {
  const Held mine = hold();
  TestCache elsewhere(rest_, {.device = 2});
  const std::string lease = elsewhere.allocate(1, "device").at("lease");
  EXPECT_THAT(rest_.put_bytes(cache_.data_path(mine.handle, lease), block(9)), is_refusal());
  EXPECT_THAT(commit(lease, mine.handle), is_refusal());
  EXPECT_EQ(elsewhere.counts().at("leases"), 1);
}

TEST_F(BadRequestTest, RefusesAMissingSlot) {
  Held held = hold();
  held.handle["slot"] = 4;
  EXPECT_THAT(rest_.put_bytes(cache_.data_path(held.handle, held.lease), block(9)),
              is_problem(404, "unknown_slot"));
  EXPECT_THAT(commit(held.lease, held.handle), is_problem(404, "unknown_slot"));
  for (const char* slot : {"-1", "x", "99999999999999999999", "1.5", "0x1"}) {
    EXPECT_THAT(rest_.put_bytes(cache_.path("/slots/device/" + std::string(slot) +
                                            "/data?generation=1&lease=" + held.lease),
                                block(9)),
                is_refusal())
        << slot;
  }
  EXPECT_THAT(
      rest_.put_bytes(cache_.path("/slots/tape/0/data?generation=1&lease=" + held.lease), block(9)),
      is_refusal());
}

TEST_F(BadRequestTest, RefusesASlotThatIsNotAllocated) {
  const Held held = hold();
  // The stored block on the same tier.
  const json stored = cache_.match(keys(1, 1), 0).at("blocks").at(0);
  EXPECT_THAT(rest_.put_bytes(cache_.data_path(stored, held.lease), block(9)), is_problem(409));
  EXPECT_THAT(commit(held.lease, stored), is_problem(409));
}

TEST_F(BadRequestTest, RefusesAWrongContentType) {
  const Held held = hold();
  const std::string unsupported = "unsupported_media_type";
  for (const char* type : {"text/plain", "application/xml", "nonsense", "application/jsonx"}) {
    for (const char* route : {"/match", "/allocate", "/commit", "/read", "/transfers", "/evict"}) {
      EXPECT_THAT(rest_.send({"POST", cache_.path(route), "{\"keys\":[]}", type}),
                  is_problem(415, unsupported))
          << type << " " << route;
    }
  }
  for (const char* type : {"application/json", "text/plain", "multipart/form-data"}) {
    EXPECT_THAT(rest_.send({"PUT", cache_.key_path(9), block(9), type}),
                is_problem(415, unsupported));
    EXPECT_THAT(rest_.send({"PUT", cache_.data_path(held.handle, held.lease), block(9), type}),
                is_problem(415, unsupported));
    EXPECT_THAT(rest_.send({"POST", cache_.path("/write"),
                            write_body({{"keys", keys(9, 1)}}, block(9)), type}),
                is_problem(415, unsupported));
  }
}

TEST_F(BadRequestTest, RefusesAnUnknownQueryParameter) {
  const json keys_body = {{"keys", keys(1, 1)}};
  const std::vector<Reply> replies = {rest_.get(cache_.path("?verbose=1")),
                                      rest_.get("/v1/caches?page=1"),
                                      rest_.del(cache_.path("?now=true")),
                                      rest_.get(cache_.key_path(1, "?part=1")),
                                      rest_.put_bytes(cache_.key_path(9, "?tll_ms=5"), block(9)),
                                      rest_.post(cache_.path("/match?lease_ms=5"), keys_body),
                                      rest_.post(cache_.path("/read?limit=1"), keys_body),
                                      rest_.post(cache_.path("/evict?tier=disk"), keys_body),
                                      rest_.post(cache_.path("/clear?tier=disk"), json::object()),
                                      rest_.get(cache_.path("/blocks?tiers=disk")),
                                      rest_.get("/healthz?x=1")};
  for (std::size_t i = 0; i < replies.size(); ++i) {
    EXPECT_THAT(replies[i], is_problem(400, "unknown_field")) << "request " << i;
  }
}

TEST_F(BadRequestTest, RefusesAWrongQueryValue) {
  const std::string at = cache_.key_path(9);
  for (const std::string query :
       {"?ttl_ms=0", "?ttl_ms=-5", "?ttl_ms=1e3", "?ttl_ms=99999999999999999999",
        "?ttl_ms=", "?ttl_ms", "?tier=", "?parent=xyz", "?parent=", "?ttl_ms=5&ttl_ms=6", "?%zz=1",
        "?tier=%", "?tier=disk%00"}) {
    EXPECT_THAT(rest_.put_bytes(at + query, block(9)), is_problem(400)) << query;
  }
  EXPECT_THAT(rest_.del(cache_.path("?force=maybe")), is_problem(400));
  for (const std::string query :
       {"?key_bytes=0", "?key_bytes=65", "?key_bytes=x", "", "?key_bytes=16&lease_ms=-1"}) {
    EXPECT_THAT(rest_.post_bytes(cache_.path("/match" + query), packed(keys(1, 1))),
                is_problem(400))
        << query;
  }
}

TEST_F(BadRequestTest, NamesTheMethodsThatAPathAllows) {
  const auto expect = [&](const std::string& method, const std::string& target,
                          const std::vector<std::string>& allowed) {
    const Reply reply = rest_.send({.method = method, .target = target});
    EXPECT_THAT(reply, is_problem(405, "method_not_allowed")) << method << " " << target;
    const std::string allow = reply.header("Allow");
    for (const std::string& word : allowed) EXPECT_THAT(allow, testing::HasSubstr(word)) << target;
    EXPECT_THAT(allow, testing::Not(testing::HasSubstr(method)));
  };
  expect("GET", cache_.path("/match"), {"POST"});
  expect("DELETE", cache_.path("/match"), {"POST"});
  expect("POST", cache_.path(), {"GET", "PUT", "DELETE"});
  expect("POST", cache_.key_path(1), {"GET", "PUT", "HEAD", "DELETE"});
  expect("DELETE", "/v1/caches", {"GET"});
  expect("POST", "/healthz", {"GET"});
  expect("PATCH", cache_.key_path(1), {"GET", "PUT", "DELETE"});
  expect("BREW", "/", {"GET"});
}

TEST_F(BadRequestTest, RefusesUnknownPaths) {
  for (const std::string& target : {std::string("/nothing"),
                                    std::string("/v1"),
                                    std::string("/v1/"),
                                    std::string("/v2/caches"),
                                    std::string("//"),
                                    std::string("/v1//caches"),
                                    std::string("/v1/caches/"),
                                    cache_.path("/"),
                                    cache_.path("//match"),
                                    cache_.path("/keys"),
                                    cache_.path("/keys/"),
                                    std::string("/v1/caches/%2e%2e/") + cache_.name(),
                                    std::string("/../../etc/passwd"),
                                    std::string("/v1/caches/../../etc/passwd"),
                                    std::string("/%2e%2e/%2e%2e/etc/passwd"),
                                    std::string("/v1/caches/..%2f..%2fetc%2fpasswd"),
                                    std::string("/V1/caches"),
                                    cache_.path("%00"),
                                    cache_.path("/keys/..%2F..%2Fsecret"),
                                    cache_.path("/keys/%zz"),
                                    "/v1/caches/" + std::string(5'000, 'a'),
                                    cache_.path("/keys/" + std::string(5'000, 'a'))}) {
    EXPECT_THAT(rest_.get(target), is_refusal()) << target.substr(0, 100);
  }
}

TEST_F(BadRequestTest, RefusesAHeadThatIsTooLong) {
  const Reply target = rest_.get("/" + std::string(100'000, 'a'));
  EXPECT_TRUE(target.status == 431 || target.status == 414) << testing::PrintToString(target);
  const Reply field =
      rest_.send({.target = "/healthz", .headers = {{"Cookie", std::string(100'000, 'a')}}});
  EXPECT_THAT(field, is_problem(431));
  std::vector<std::pair<std::string, std::string>> many(5'000, {"A", "b"});
  EXPECT_THAT(rest_.send({.target = "/healthz", .headers = many}), is_problem(431));
}

TEST_F(BadRequestTest, RefusesABodyThatIsTooLong) {
  EXPECT_THAT(rest_.send({"POST", cache_.path("/match"), std::string(std::size_t{33} << 20U, ' '),
                          "application/json"}),
              is_problem(413, "body_too_large"));
  EXPECT_THAT(rest_.send({"PUT", cache_.key_path(1) + "/metadata",
                          "{\"a\":\"" + std::string(1 << 16U, 'x') + "\"}", "application/json"}),
              is_problem(413, "body_too_large"));
}

}  // namespace
}  // namespace cairn::e2e
