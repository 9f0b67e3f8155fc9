#include "server/codec/ids.hpp"

#include <gtest/gtest.h>

#include "blockmgr/index/cache_name.hpp"
#include "server/codec/media_type.hpp"

namespace cairn {
namespace {

TEST(Ids, LeasesReadBackAsWritten) {
  LeaseId lease{.cache = 0x01020304, .secret = {}};
  for (std::size_t i = 0; i < lease.secret.size(); ++i) lease.secret[i] = std::byte(0xA0 + i);
  EXPECT_EQ(lease_text(lease), "01020304a0a1a2a3a4a5a6a7a8a9aaab");
  EXPECT_EQ(lease_from(lease_text(lease)), lease);
  EXPECT_FALSE(lease_from("01020304a0a1a2a3a4a5a6a7a8a9aa"));
  EXPECT_FALSE(lease_from("01020304a0a1a2a3a4a5a6a7a8a9aabx"));
}

TEST(Ids, TransfersReadBackAsWritten) {
  EXPECT_EQ(transfer_text(TransferId{31}), "t-1f");
  EXPECT_EQ(transfer_from("t-1f"), TransferId{31});
  for (const char* text : {"", "t-", "1f", "t-1g", "t--1", "t-10000000000000000", "t-1f "}) {
    EXPECT_FALSE(transfer_from(text)) << text;
  }
}

TEST(Ids, CacheNamesAreSafeInPathsAndLabels) {
  for (const char* name : {"a", "llama-3.1_8B", "..x"}) EXPECT_TRUE(is_cache_name(name)) << name;
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("a/b"), std::string("a b"),
        std::string("\xc3\xa4"), std::string("a\0b", 3), std::string(65, 'a')}) {
    EXPECT_FALSE(is_cache_name(name)) << name;
  }
}

TEST(MediaType, ReadsTheTypeOfABody) {
  EXPECT_EQ(*body_format("application/json"), WireFormat::text);
  // A browser sends these types for any page, without a preflight request.
  for (const char* simple : {"", "application/x-www-form-urlencoded", "text/plain",
                             "text/plain; application/json", "multipart/form-data"}) {
    EXPECT_EQ(body_format(simple).error().code, ErrorCode::unsupported_media_type) << simple;
    EXPECT_FALSE(check_bytes_type(simple)) << simple;
  }
  EXPECT_EQ(*body_format("Application/JSON; charset=utf-8"), WireFormat::text);
  EXPECT_EQ(*body_format("application/msgpack"), WireFormat::msgpack);
  EXPECT_TRUE(check_bytes_type("application/octet-stream"));
  EXPECT_FALSE(check_bytes_type("application/json"));
}

TEST(MediaType, AcceptChoosesTheFormat) {
  EXPECT_EQ(answer_form("").format, WireFormat::text);
  EXPECT_EQ(answer_form("*/*").format, WireFormat::text);
  EXPECT_EQ(answer_form("application/msgpack").format, WireFormat::msgpack);
  EXPECT_EQ(answer_form("application/msgpack, application/json").format, WireFormat::msgpack);
  EXPECT_EQ(answer_form("application/json, application/msgpack").format, WireFormat::text);
  EXPECT_EQ(answer_form("application/msgpack, */*").format, WireFormat::msgpack);
  EXPECT_EQ(answer_form("text/html, Application/X-MsgPack").format, WireFormat::msgpack);
  EXPECT_EQ(answer_form("application/msgpackish").format, WireFormat::text);
}

TEST(MediaType, AcceptWeightsChooseTheFormat) {
  const auto wanted = [](std::string_view accept) { return answer_form(accept).format; };
  EXPECT_EQ(wanted("application/json;q=0, application/msgpack"), WireFormat::msgpack);
  EXPECT_EQ(wanted("application/json;q=0, */*"), WireFormat::msgpack);
  EXPECT_EQ(wanted("application/json;q=0.5, application/msgpack"), WireFormat::msgpack);
  EXPECT_EQ(wanted("application/json ;\tQ=0.998,application/msgpack;q=0.999"), WireFormat::msgpack);
  EXPECT_EQ(wanted("application/msgpack;q=0.5, application/json"), WireFormat::text);
  EXPECT_EQ(wanted("application/msgpack;q=0.5, */*"), WireFormat::text);
  EXPECT_EQ(wanted("application/msgpack;q=0.500, application/*;q=0.25"), WireFormat::msgpack);
  EXPECT_EQ(wanted("*/*;q=1, application/*;q=0.2, application/msgpack;q=0.3"), WireFormat::msgpack);
  EXPECT_EQ(wanted("application/msgpack;q=0"), WireFormat::text);
  EXPECT_EQ(wanted("application/msgpack;v=\"a,b;q=0\\\"\";q=0.1, application/json;q=0.2"),
            WireFormat::text);
}

TEST(MediaType, BytesNeedAnExplicitAccept) {
  for (const char* yes : {"application/octet-stream", "application/octet-stream, */*",
                          "application/octet-stream, application/problem+json",
                          "application/json;q=0.5, Application/Octet-Stream"}) {
    EXPECT_TRUE(answer_form(yes).bytes) << yes;
  }
  for (const char* no :
       {"", "*/*", "application/*", "application/octet-stream;q=0",
        "application/json, application/octet-stream", "application/octet-stream;q=0.5, */*"}) {
    EXPECT_FALSE(answer_form(no).bytes) << no;
  }
}

TEST(MediaType, FallsBackToJson) {
  for (const std::string_view accept : {"application/json;q=0", "*/*;q=0", "text/html",
                                        "application/json;q=0, application/msgpack;q=0.000"}) {
    EXPECT_EQ(answer_form(accept).format, WireFormat::text) << accept;
  }
}

TEST(MediaType, IgnoresInvalidWeights) {
  for (const std::string_view weight :
       {"q=", "q=2", "q=-1", "q=0.1234", "q=.5", "q=0.x", "q", "q=00", "q=1.5", ";;", "level=0"}) {
    const std::string accept = "application/json;q=0.9, application/msgpack;" + std::string(weight);
    EXPECT_EQ(answer_form(accept).format, WireFormat::msgpack) << accept;
  }
}

}  // namespace
}  // namespace cairn
