#include "server/codec/document.hpp"

#include <gmock/gmock.h>

#include "server/codec/cache_body.hpp"
#include "server/codec/fields.hpp"

namespace cairn {
namespace {

using ::testing::HasSubstr;

TEST(Document, ReportsWhereTextIsBroken) {
  const auto parsed = parse_document(R"({"a": 1, "b": })");
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code, ErrorCode::malformed);
  EXPECT_THAT(parsed.error().detail, HasSubstr("at byte 15"));
}

TEST(Document, RefusesAMemberGivenTwice) {
  const auto parsed = parse_document(R"({"a": {"b": 1, "b": 2}})");
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code, ErrorCode::malformed);
  EXPECT_THAT(parsed.error().detail, HasSubstr("'b'"));
}

TEST(Document, RefusesNestingThatCouldExhaustAStack) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_FALSE(parse_document(deep));
  // MessagePack: a million lists of one element each.
  const std::string packed(1'000'000, '\x91');
  EXPECT_FALSE(parse_document(std::as_bytes(std::span(packed)), WireFormat::msgpack));
  const std::string as_deep_as_may_be =
      std::string(kMaxNesting, '[') + std::string(kMaxNesting, ']');
  EXPECT_TRUE(parse_document(as_deep_as_may_be));
}

// MessagePack can express more than JSON. Such values are refused, never converted.
TEST(Document, RefusesValuesThatJsonCannotExpress) {
  using namespace std::string_view_literals;
  struct Wrong {
    std::string_view packed;
    const char* names;
  };
  constexpr Wrong kTable[] = {
      {"\x81\xa1\x61\xa2\xff\xfe"sv, "member 'a' is a string that is not UTF-8"},
      {"\x81\xa1\x61\x91\xa1\xc3"sv, "an element of a list is a string that is not UTF-8"},
      {"\x81\xa1\xff\x01"sv, "name is not UTF-8"},
      {"\xa1\xff"sv, "the body is a string that is not UTF-8"},
      {"\x81\xa1\x61\xc4\x01\x00"sv, "member 'a' is of a binary type"},
      {"\x81\xa1\x61\xd4\x05\x00"sv, "member 'a' is of a binary type"},
      {"\x81\xa1\x61\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00"sv, "member 'a' is no finite number"},
      {"\x81\xa1\x61\xca\x7f\x80\x00\x00"sv, "member 'a' is no finite number"},
  };
  for (const Wrong& wrong : kTable) {
    SCOPED_TRACE(wrong.names);
    const auto parsed = parse_document(std::as_bytes(std::span(wrong.packed)), WireFormat::msgpack);
    ASSERT_FALSE(parsed);
    EXPECT_EQ(to_string(parsed.error().code), "malformed");
    EXPECT_THAT(parsed.error().detail, HasSubstr(wrong.names));
  }
}

TEST(Document, StopsAtTheFirstExcessValue) {
  constexpr std::size_t kMost = 4 * 8 + 4;
  const auto parse = [](const std::string& body, WireFormat format) {
    return parse_document(std::as_bytes(std::span(body)), format, kMost);
  };
  // Two objects and two lists, each counted as eight values, and four more values.
  const std::string fits = R"({"a": [1, "x", null, true, [], {}]})";
  ASSERT_TRUE(parse(fits, WireFormat::text));
  ASSERT_TRUE(parse(write_text(fits, WireFormat::msgpack), WireFormat::msgpack));
  // The parser reads no further.
  for (const char* element : {"7", "[]", "{}", "true"}) {
    const std::string text = R"({"a": [1, "x", null, true, [], {}, )" + std::string(element);
    const auto refused = parse(text, WireFormat::text);
    ASSERT_FALSE(refused) << element;
    EXPECT_EQ(to_string(refused.error().code), "out_of_range");
    EXPECT_THAT(refused.error().detail, HasSubstr("more than 36 values"));
  }
}

TEST(Document, RefusesAnAnnouncedSizeOverTheLimit) {
  using namespace std::string_view_literals;
  // Lists that announce 30 million elements, and an object that announces as many members. None
  // follow.
  for (const std::string_view packed :
       {"\x81\xa4keys\xdd\x01\xc9\xc3\x80"sv, "\xdd\x01\xc9\xc3\x80"sv, "\xdf\x01\xc9\xc3\x80"sv}) {
    const auto refused = parse_document(std::as_bytes(std::span(packed)), WireFormat::msgpack);
    ASSERT_FALSE(refused);
    EXPECT_EQ(to_string(refused.error().code), "out_of_range") << refused.error().detail;
  }
}

TEST(Document, HoldsTheLargestRequestOfALargeServer) {
  EXPECT_GE(max_document_values(1), kMaxDocumentValues);
  // Keys and their parents, the body and the two lists.
  EXPECT_GE(max_document_values(1u << 20), 2 * (std::size_t{1} << 20) + 3);
}

// Regression: in MessagePack, commits of 43,690 blocks and more were refused.
TEST(Document, HoldsTheLargestCommitWithTokens) {
  constexpr std::size_t kBlocks = 65'536;
  const json tokens = json::array_t(64, json(7));
  const json block = {{"tier", "pinned"},
                      {"slot", 1},
                      {"generation", 1},
                      {"key", "aa"},
                      {"parent", "bb"},
                      {"ttl_ms", 1},
                      {"metadata", {{"tokens", tokens}}}};
  const std::vector<std::uint8_t> one = json::to_msgpack(block);
  // A map of one list: {"blocks": [...]}.
  std::string packed =
      "\x81\xa6"
      "blocks\xdd";
  for (int shift = 24; shift >= 0; shift -= 8) {
    packed += static_cast<char>(kBlocks >> static_cast<unsigned>(shift));
  }
  for (std::size_t i = 0; i < kBlocks; ++i) packed.append(one.begin(), one.end());
  const auto parsed = parse_document(std::as_bytes(std::span(packed)), WireFormat::msgpack);
  ASSERT_TRUE(parsed) << parsed.error().detail;
  EXPECT_EQ(parsed->at("blocks").size(), kBlocks);
}

TEST(Document, RefusesNumbersTooLargeForADouble) {
  const auto parsed = parse_document(R"({"a": 1e400})");
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code, ErrorCode::malformed);
}

TEST(Document, RefusesTextBehindTheEnd) {
  EXPECT_FALSE(parse_document("{} {}"));
  const std::string packed = "\x80\x80";
  EXPECT_FALSE(parse_document(std::as_bytes(std::span(packed)), WireFormat::msgpack));
}

TEST(Document, RefusesANulAndTextBehindIt) {
  using namespace std::string_view_literals;
  EXPECT_FALSE(parse_document("{}\0"sv));
  EXPECT_FALSE(parse_document("{\"a\": 1}\0, \"b\": 2}"sv));
}

TEST(Document, KeepsStructure) {
  const auto parsed = parse_document(R"({"a": [1, [2, {"b": null}], "c"], "d": {"e": true}})");
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->dump(), R"({"a":[1,[2,{"b":null}],"c"],"d":{"e":true}})");
}

TEST(Document, MessagePackResponseReadsBackTheSame) {
  const std::string text = R"({"matched":2,"lease":null,"blocks":[{"slot":17}]})";
  const std::string packed = write_text(text, WireFormat::msgpack);
  const auto parsed = parse_document(std::as_bytes(std::span(packed)), WireFormat::msgpack);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(*parsed, json::parse(text));
}

constexpr std::string_view kCacheBody = R"({
  "layout": {"num_layers": 4, "outer_dim": 2, "page_size": 16, "inner_dim": 8,
             "dtype_width_bytes": 2},
  "tiers": {"device": {"num_blocks": 5, "layout": "layer_separate", "block_dim": "second"},
            "pinned": {"num_blocks": 6, "numa_aware": true},
            "disk": {"num_blocks": 7, "path": "p"}}})";

TEST(CacheBody, FillsInTheDefaults) {
  const auto config = read_cache_body(json::parse(kCacheBody), "c");
  ASSERT_TRUE(config) << config.error().detail;
  EXPECT_EQ(config->name, "c");
  EXPECT_EQ(config->shape.alignment, 4096u);
  EXPECT_EQ(config->offload, OffloadMode::on_evict);
  EXPECT_EQ(config->default_lease_ms, 30'000u);
  const auto& device = *config->tiers[index_of(Tier::device)];
  EXPECT_EQ(device.layout, LayoutKind::layer_separate);
  EXPECT_EQ(device.block_dim, BlockDim::second);
  EXPECT_TRUE(config->tiers[index_of(Tier::pinned)]->numa_aware);
  EXPECT_EQ(config->tiers[index_of(Tier::disk)]->path, "p");
}

// The body with one place changed, by a JSON patch.
json patched(const char* patch) { return json::parse(kCacheBody).patch(json::parse(patch)); }

TEST(CacheBody, WrongBodiesNameTheirField) {
  struct Wrong {
    const char* patch;
    ErrorCode code;
    const char* names;
  };
  constexpr Wrong kTable[] = {
      {R"([{"op":"remove","path":"/layout"}])", ErrorCode::missing_field, "layout"},
      {R"([{"op":"remove","path":"/layout/inner_dim"}])", ErrorCode::missing_field,
       "layout.inner_dim"},
      {R"([{"op":"add","path":"/layout/x","value":1}])", ErrorCode::unknown_field, "layout.x"},
      {R"([{"op":"move","from":"/layout/inner_dim","path":"/layout/inner"}])",
       ErrorCode::unknown_field, "layout.inner "},
      {R"([{"op":"replace","path":"/layout/page_size","value":-1}])", ErrorCode::out_of_range,
       "layout.page_size is -1"},
      {R"([{"op":"replace","path":"/layout/page_size","value":1.5}])", ErrorCode::wrong_type,
       "layout.page_size"},
      {R"([{"op":"replace","path":"/layout/page_size","value":1e300}])", ErrorCode::out_of_range,
       "layout.page_size"},
      {R"([{"op":"replace","path":"/layout/page_size","value":"16"}])", ErrorCode::wrong_type,
       "layout.page_size is a string"},
      {R"([{"op":"replace","path":"/layout","value":[]}])", ErrorCode::wrong_type, "layout"},
      {R"([{"op":"add","path":"/tiers/tape","value":{}}])", ErrorCode::unknown_field, "tiers.tape"},
      {R"([{"op":"replace","path":"/tiers","value":{}}])", ErrorCode::missing_field, "tiers"},
      {R"([{"op":"remove","path":"/tiers/device/num_blocks"}])", ErrorCode::missing_field,
       "tiers.device.num_blocks"},
      {R"([{"op":"replace","path":"/tiers/device/num_blocks","value":4294967296}])",
       ErrorCode::out_of_range, "tiers.device.num_blocks"},
      {R"([{"op":"replace","path":"/tiers/device/layout","value":"spiral"}])",
       ErrorCode::out_of_range, "tiers.device.layout is 'spiral'"},
      {R"([{"op":"add","path":"/tiers/pinned/block_dim","value":"first"}])", ErrorCode::malformed,
       "tiers.pinned.block_dim"},
      {R"([{"op":"add","path":"/tiers/disk/device_id","value":0}])", ErrorCode::unknown_field,
       "tiers.disk.device_id"},
      {R"([{"op":"add","path":"/tiers/device/path","value":"x"}])", ErrorCode::unknown_field,
       "tiers.device.path"},
      {R"([{"op":"add","path":"/tiers/device/memory","value":{}}])", ErrorCode::missing_field,
       "tiers.device.memory.import"},
      {R"([{"op":"add","path":"/tiers/device/memory","value":{"import":{"kind":"shm","path":"/a"}}}])",
       ErrorCode::missing_field, "tiers.device.memory.import.size_bytes"},
      {R"([{"op":"add","path":"/tiers/device/memory","value":{"import":{"kind":"spiral"}}}])",
       ErrorCode::out_of_range, "tiers.device.memory.import.kind is 'spiral'"},
      {R"([{"op":"add","path":"/tiers/disk/memory","value":{}}])", ErrorCode::unknown_field,
       "tiers.disk.memory"},
      {R"([{"op":"replace","path":"/tiers/pinned/numa_aware","value":1}])", ErrorCode::wrong_type,
       "tiers.pinned.numa_aware"},
      {R"([{"op":"add","path":"/eviction","value":"fifo"}])", ErrorCode::out_of_range, "eviction"},
      {R"([{"op":"add","path":"/offload","value":"later"}])", ErrorCode::out_of_range, "offload"},
      {R"([{"op":"add","path":"/default_lease_ms","value":0}])", ErrorCode::out_of_range,
       "default_lease_ms is 0"},
      {R"([{"op":"add","path":"/colour","value":0}])", ErrorCode::unknown_field, "colour"},
  };
  for (const Wrong& wrong : kTable) {
    SCOPED_TRACE(wrong.patch);
    const auto config = read_cache_body(patched(wrong.patch), "c");
    ASSERT_FALSE(config);
    EXPECT_EQ(to_string(config.error().code), to_string(wrong.code)) << config.error().detail;
    EXPECT_THAT(config.error().detail, HasSubstr(wrong.names));
  }
}

TEST(CacheBody, IsAnObject) {
  EXPECT_FALSE(read_cache_body(json::parse("[]"), "c"));
  EXPECT_FALSE(read_cache_body(json::parse("null"), "c"));
}

}  // namespace
}  // namespace cairn
