#include "tests/e2e/support/unharmed_test.hpp"

// Bodies that are not JSON, break the schema or name things that do not exist.
namespace cairn::e2e {
namespace {

constexpr const char* kNoLease = "ffffffff000000000000000000000000";

class BadJsonTest : public UnharmedTest {
 protected:
  Reply post(const std::string& route, const std::string& body) {
    return rest_.send({"POST", cache_.path(route), body, "application/json"});
  }
};

// Bodies that no route accepts.
class NotJsonTest : public BadJsonTest, public testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(
    Bodies, NotJsonTest,
    testing::Values("{", "}", "[]", "null", "7", "\"keys\"", "{} {}", "{}x", "{\"keys\":}",
                    "{\"keys\":[}", "{\"keys\":[],}", "{keys:[]}", "{'keys':[]}", "{\"keys\":[]",
                    "{\"keys\" []}", "\xEF\xBB", std::string("{\"keys\":[\"\xFF\xFE\"]}"),
                    std::string("\0\0\0\0", 4), "{\"keys\":[NaN]}", "{\"keys\":[\"ab\" \"cd\"]}",
                    "{\"keys\":[\"\\ud800\"]}", std::string(100'000, '['),
                    std::string(100'000, '{'),
                    "{\"keys\":" + std::string(5'000, '[') + std::string(5'000, ']') + "}"));

TEST_P(NotJsonTest, IsRefusedByEveryRoute) {
  const std::string at = cache_.path();
  const std::string lease = std::string("/v1/leases/") + kNoLease;
  for (const char* route :
       {"/match", "/allocate", "/commit", "/read", "/transfers", "/evict", "/clear"}) {
    EXPECT_THAT(post(route, GetParam()), is_problem(400)) << route;
  }
  EXPECT_THAT(rest_.send({"PUT", "/v1/caches/refused", GetParam(), "application/json"}),
              is_problem(400));
  EXPECT_THAT(rest_.send({"PUT", cache_.key_path(1) + "/metadata", GetParam(), "application/json"}),
              is_problem(400));
  EXPECT_THAT(rest_.post_bytes(at + "/write", write_body(json(), "")), is_problem(400));
}

// One request: the body sent to a route, and the expected refusal.
struct BadBody {
  const char* route;
  std::string body;
  unsigned status;
  const char* code;
};
void PrintTo(const BadBody& bad, std::ostream* out) {
  *out << bad.route << " " << bad.body.substr(0, 200);
}
class BadBodyTest : public BadJsonTest, public testing::WithParamInterface<BadBody> {};

TEST_P(BadBodyTest, IsRefusedByName) {
  const auto& [route, body, status, code] = GetParam();
  EXPECT_THAT(post(route, body), is_problem(status, code));
}

std::string with_key(const std::string& key) { return "{\"keys\":[\"" + key + "\"]}"; }
std::string match_with(const std::string& member) { return "{\"keys\":[\"ab\"]," + member + "}"; }

INSTANTIATE_TEST_SUITE_P(
    Keys, BadBodyTest,
    testing::Values(BadBody{"/match", "{\"keys\":\"ab\"}", 400, "wrong_type"},
                    BadBody{"/match", "{\"keys\":[1]}", 400, "wrong_type"},
                    BadBody{"/match", "{\"keys\":[null]}", 400, "wrong_type"},
                    BadBody{"/match", "{\"keys\":[[\"ab\"]]}", 400, "wrong_type"},
                    BadBody{"/match", with_key("xy"), 400, "malformed"},
                    BadBody{"/match", with_key("abc"), 400, "malformed"},
                    BadBody{"/match", with_key(""), 400, "malformed"},
                    BadBody{"/match", with_key("0x12"), 400, "malformed"},
                    BadBody{"/match", with_key(" ab"), 400, "malformed"},
                    BadBody{"/match", with_key(std::string(130, 'a')), 400, "malformed"},
                    BadBody{"/match", with_key(std::string(100'000, 'a')), 400, "malformed"},
                    BadBody{"/read", with_key("xy"), 400, "malformed"},
                    BadBody{"/read", with_key(std::string(130, 'a')), 400, "malformed"},
                    BadBody{"/read", "{}", 400, "missing_field"},
                    BadBody{"/read", "{\"keys\":{}}", 400, "wrong_type"},
                    BadBody{"/evict", with_key("xy"), 400, "malformed"},
                    BadBody{"/evict", "{\"tier\":\"disk\"}", 400, "missing_field"},
                    BadBody{"/evict", "{\"keys\":[\"ab\"],\"tier\":\"tape\"}", 400, "out_of_range"},
                    BadBody{"/clear", "{\"tier\":5}", 400, "wrong_type"},
                    BadBody{"/clear", "{\"all\":true}", 400, "unknown_field"},
                    BadBody{"/transfers", "{\"keys\":[\"ab\"]}", 400, "missing_field"},
                    BadBody{"/transfers", "{\"keys\":[\"ab\"],\"to\":\"disk\"}", 404,
                            "unknown_key"},
                    BadBody{"/transfers", "{\"keys\":[\"ab\"],\"to\":\"disk\",\"wait_ms\":-1}", 400,
                            "out_of_range"},
                    BadBody{"/transfers", "{\"keys\":[\"ab\"],\"to\":\"disk\",\"priority\":1e99}",
                            400, "out_of_range"}));

INSTANTIATE_TEST_SUITE_P(
    Match, BadBodyTest,
    testing::Values(BadBody{"/match", match_with("\"lease_ms\":-1"), 400, "out_of_range"},
                    BadBody{"/match", match_with("\"lease_ms\":4294967296"), 400, "out_of_range"},
                    BadBody{"/match", match_with("\"lease_ms\":99999999999999999999999"), 400,
                            "out_of_range"},
                    BadBody{"/match", match_with("\"lease_ms\":1.5"), 400, "wrong_type"},
                    BadBody{"/match", match_with("\"lease_ms\":\"30\""), 400, "wrong_type"},
                    BadBody{"/match", match_with("\"lease_ms\":true"), 400, "wrong_type"},
                    BadBody{"/match", match_with("\"lease_ms\":[]"), 400, "wrong_type"},
                    BadBody{"/match", match_with("\"leasems\":1"), 400, "unknown_field"},
                    BadBody{"/match", match_with("\"onboard\":\"gpu\""), 400, "out_of_range"},
                    BadBody{"/match", match_with("\"onboard\":1"), 400, "wrong_type"},
                    BadBody{"/match", match_with("\"wait_ms\":99999999"), 400, "out_of_range"},
                    BadBody{"/match", match_with("\"tokens\":[1]"), 400, "malformed"},
                    BadBody{"/match", "{\"tokens\":[-1]}", 400, "out_of_range"},
                    BadBody{"/match", "{\"tokens\":[4294967296]}", 400, "out_of_range"},
                    BadBody{"/match", "{\"tokens\":[\"a\"]}", 400, "wrong_type"},
                    BadBody{"/match", "{\"tokens\":5}", 400, "wrong_type"},
                    BadBody{"/match", "{\"tokens\":[1],\"salt\":5}", 400, "wrong_type"},
                    BadBody{"/match", "{}", 400, "missing_field"}));

std::string allocate_with(const std::string& member) {
  return "{\"count\":1,\"tier\":\"device\"," + member + "}";
}
std::string commit_with(const std::string& block) {
  return std::string("{\"lease\":\"") + kNoLease + "\",\"blocks\":[" + block + "]}";
}

INSTANTIATE_TEST_SUITE_P(
    AllocateAndCommit, BadBodyTest,
    testing::Values(
        BadBody{"/allocate", "{\"tier\":\"device\"}", 400, "missing_field"},
        BadBody{"/allocate", "{\"count\":0}", 400, "out_of_range"},
        BadBody{"/allocate", "{\"count\":-1}", 400, "out_of_range"},
        BadBody{"/allocate", "{\"count\":1.5}", 400, "wrong_type"},
        BadBody{"/allocate", "{\"count\":4294967297}", 400, "out_of_range"},
        BadBody{"/allocate", "{\"count\":1000000}", 400, "out_of_range"},
        BadBody{"/allocate", "{\"count\":\"1\"}", 400, "wrong_type"},
        BadBody{"/allocate", "{\"count\":5}", 422, "impossible"},
        BadBody{"/allocate", allocate_with("\"priority\":101"), 400, "out_of_range"},
        BadBody{"/allocate", allocate_with("\"priority\":-1"), 400, "out_of_range"},
        BadBody{"/allocate", allocate_with("\"lease_ms\":3600001"), 400, "out_of_range"},
        BadBody{"/allocate", allocate_with("\"owner\":\"me\""), 400, "unknown_field"},
        BadBody{"/allocate", "{\"count\":1,\"tier\":\"tape\"}", 400, "out_of_range"},
        BadBody{"/commit", "{\"blocks\":[]}", 400, "missing_field"},
        BadBody{"/commit", "{\"lease\":\"12\",\"blocks\":[]}", 400, "malformed"},
        BadBody{"/commit", "{\"lease\":12,\"blocks\":[]}", 400, "wrong_type"},
        BadBody{"/commit", commit_with("1"), 400, "wrong_type"},
        BadBody{"/commit", commit_with("{\"tier\":\"disk\",\"slot\":0,\"generation\":1}"), 400,
                "missing_field"},
        BadBody{"/commit",
                commit_with("{\"tier\":\"disk\",\"slot\":-1,\"generation\":1,\"key\":\"ab\"}"), 400,
                "out_of_range"},
        BadBody{"/commit",
                commit_with("{\"tier\":\"disk\",\"slot\":0,\"generation\":1,\"key\":\"zz\"}"), 400,
                "malformed"},
        BadBody{"/commit",
                commit_with("{\"tier\":\"disk\",\"slot\":0,\"generation\":1,\"key\":\"ab\","
                            "\"metadata\":[1]}"),
                400, "wrong_type"},
        BadBody{"/commit",
                commit_with("{\"tier\":\"disk\",\"slot\":0,\"generation\":1,\"key\":\"ab\"}"), 404,
                "unknown_lease"}));

TEST_F(BadJsonTest, RefusesNumbersOutOfRange) {
  for (const char* number :
       {"1e400", "-1e400", "1e99999999999", "123456789012345678901234567890"}) {
    EXPECT_THAT(post("/allocate", std::string("{\"count\":") + number + "}"), is_problem(400));
    EXPECT_THAT(post("/match", match_with(std::string("\"lease_ms\":") + number)), is_problem(400));
    EXPECT_THAT(post("/transfers",
                     std::string("{\"keys\":[],\"to\":\"disk\",\"priority\":") + number + "}"),
                is_problem(400));
    std::string body = cache_body({.device = 1}).dump();
    body.replace(body.find("\"num_blocks\":1"), 14, std::string("\"num_blocks\":") + number);
    EXPECT_THAT(rest_.send({"PUT", "/v1/caches/refused", body, "application/json"}),
                is_problem(400))
        << number;
  }
}

TEST_F(BadJsonTest, RefusesTooManyKeys) {
  std::vector<std::string> many(70'000, "ab");
  EXPECT_THAT(rest_.post(cache_.path("/match"), {{"keys", many}}), is_problem(400, "out_of_range"));
  EXPECT_THAT(rest_.post(cache_.path("/read"), {{"keys", many}}), is_problem(400, "out_of_range"));
}

TEST_F(BadJsonTest, RefusesMillionsOfTinyValues) {
  constexpr std::uint32_t kMany = 3'000'000;
  const auto list = [](const char* name, char element) {
    std::string packed = "\x81";
    packed += static_cast<char>(0xA0 + std::string(name).size());
    packed += name;
    packed += '\xDD';
    for (int shift = 24; shift >= 0; shift -= 8) packed += static_cast<char>(kMany >> shift);
    return packed + std::string(kMany, element);
  };
  for (const char* route : {"/match", "/read", "/evict", "/transfers"}) {
    const Reply reply =
        rest_.send({"POST", cache_.path(route), list("keys", '\x80'), "application/msgpack"});
    EXPECT_THAT(reply, is_problem(400, "out_of_range")) << route;
  }
  EXPECT_THAT(
      rest_.send({"POST", cache_.path("/match"), list("tokens", '\x01'), "application/msgpack"}),
      is_problem(400, "out_of_range"));
  std::string tokens = "{\"tokens\":[1";
  for (std::uint32_t i = 0; i < kMany; ++i) tokens += ",1";
  EXPECT_THAT(post("/match", tokens + "]}"), is_problem(400, "out_of_range"));
  const std::string packed(kMany, 'k');
  EXPECT_THAT(rest_.post_bytes(cache_.path("/match?key_bytes=1"), packed),
              is_problem(400, "out_of_range"));
}

TEST_F(BadJsonTest, RefusesMetadataThatJsonCannotExpress) {
  using namespace std::string_literals;
  // "a": text that is not UTF-8, bytes, an extension, NaN.
  for (const std::string& value : {"\xa2\xff\xfe"s, "\xc4\x02\x00\x01"s, "\xd4\x05\x00"s,
                                   "\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00"s}) {
    const std::string metadata = "\x81\xa1\x61" + value;
    EXPECT_THAT(
        rest_.send({"PUT", cache_.key_path(1) + "/metadata", metadata, "application/msgpack"}),
        is_problem(400, "malformed"));
    const std::string block = "\x85\xa4tier\xa6"s + "device\xa4slot\x00\xaa"s +
                              "generation\x01\xa3key\xa2" + "cc\xa8metadata" + metadata;
    const std::string commit = "\x82\xa5lease\xd9\x20"s + kNoLease + "\xa6" + "blocks\x91" + block;
    EXPECT_THAT(rest_.send({"POST", cache_.path("/commit"), commit, "application/msgpack"}),
                is_problem(400, "malformed"));
  }
  EXPECT_EQ(rest_.get(cache_.key_path(1) + "/metadata").body, "{}");
}

TEST_F(BadJsonTest, RefusesADuplicateMember) {
  EXPECT_THAT(post("/match", "{\"keys\":[\"ab\"],\"keys\":[\"cd\"]}"), is_problem(400));
  EXPECT_THAT(post("/evict", "{\"keys\":[\"ab\"],\"keys\":[\"cd\"]}"), is_problem(400));
}

TEST_F(BadJsonTest, NamesTheFieldTheValueAndTheBound) {
  const Reply reply = post("/allocate", allocate_with("\"priority\":101"));
  const std::string detail = reply.document().at("detail");
  for (const char* part : {"priority", "101", "100"}) {
    EXPECT_THAT(detail, testing::HasSubstr(part));
  }
}

TEST_F(BadJsonTest, RefusesInvalidMessagePack) {
  const std::vector<std::string> bodies = {
      "", "\xC1", "\x81", "\xDF\xFF\xFF\xFF\xFF", std::string(100'000, '\x91'), "{\"keys\":[]}"};
  for (const std::string& body : bodies) {
    for (const char* route : {"/match", "/allocate", "/commit", "/read", "/evict"}) {
      EXPECT_THAT(rest_.send({"POST", cache_.path(route), body, "application/msgpack"}),
                  is_problem(400))
          << route << " " << body.size();
    }
  }
}

}  // namespace
}  // namespace cairn::e2e
