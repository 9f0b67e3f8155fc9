#include <gmock/gmock.h>

#include "server/codec/hot_json.hpp"
#include "server/codec/ids.hpp"
#include "tests/server/padded.hpp"

namespace cairn {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kLease = "0000000700112233445566778899aabb";

constexpr std::size_t kMaxBlocks = 65'536;
const MatchLimits kLimits = MatchLimits::of(kMaxBlocks, 16);

// A MessagePack body is converted to text for the same reader.
enum class Way { text, msgpack };

std::string name_of(const ::testing::TestParamInfo<Way>& info) {
  return info.param == Way::text ? "text" : "msgpack";
}

class HotRequests : public ::testing::TestWithParam<Way> {
 protected:
  template <class Read>
  auto read(std::string_view body, Read&& read) -> decltype(read(std::span<const std::byte>())) {
    if (GetParam() == Way::text) return read(fakes::PaddedBody(body).bytes());
    auto parsed = parse_document(body);
    if (!parsed) return parsed.error();
    const auto packed = json::to_msgpack(*parsed);
    auto text = json_text_of(std::as_bytes(std::span(packed)));
    if (!text) return text.error();
    return read(fakes::PaddedBody(*text).bytes());
  }

  Result<> match(std::string_view body, const MatchLimits& limits = kLimits) {
    return read(body, [&](std::span<const std::byte> bytes) {
      return hot_json::read_match(bytes, limits, match_);
    });
  }
  Result<AllocateBody> allocate(std::string_view body) {
    return read(body, [this](std::span<const std::byte> bytes) {
      return hot_json::read_allocate(bytes, groups_);
    });
  }
  Result<CommitBody> commit(std::string_view body, std::size_t most = kMaxBlocks) {
    return read(body, [&](std::span<const std::byte> bytes) {
      return hot_json::read_commit(bytes, {.max_blocks = most, .groups = groups_});
    });
  }
  Result<ReleaseBody> release(std::string_view body, std::size_t most = kMaxBlocks) {
    return read(body, [&](std::span<const std::byte> bytes) {
      return hot_json::read_release(bytes, {.max_blocks = most, .groups = groups_});
    });
  }
  Result<RenewBody> renew(std::string_view body) { return read(body, hot_json::read_renew); }

  MatchBody match_;
  CacheConfig config_{.name = "c", .shape = {}, .tiers = {}};
  KvGroupNames groups_{config_};
};

INSTANTIATE_TEST_SUITE_P(Ways, HotRequests, ::testing::Values(Way::text, Way::msgpack), name_of);

TEST_P(HotRequests, NamesAndTextMayBeWrittenWithEscapes) {
  ASSERT_TRUE(match(R"({"\u006beys": ["\u0061a01"], "lease\u005fms": 7})"));
  ASSERT_EQ(match_.keys.size(), 1u);
  EXPECT_EQ(key_text(match_.keys.views()[0]), "aa01");
  EXPECT_EQ(match_.lease_ms, 7u);
  const auto refused = match(R"({"keys": ["aa01"], "\u006beyz": 1})");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().detail, HasSubstr("keyz"));
}

TEST_P(HotRequests, ParentThatIsNearlyNullIsRefused) {
  for (const char* parent : {"nulv", "nul", "nulll", "n"}) {
    const std::string block = R"({"tier": "disk", "slot": 0, "generation": 1, "key": "aa03", )"
                              R"("parent": )" +
                              std::string(parent) + "}";
    const auto read =
        commit(R"({"lease": ")" + std::string(kLease) + R"(", "blocks": [)" + block + "]}");
    ASSERT_FALSE(read) << parent;
    EXPECT_EQ(read.error().code, ErrorCode::malformed) << read.error().detail;
  }
}

TEST_P(HotRequests, MatchReadsKeysOfEitherCase) {
  ASSERT_TRUE(match(R"({"keys": ["00ff", "ABcd01"], "lease_ms": 5})"));
  const auto keys = match_.keys.views();
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(key_text(keys[0]), "00ff");
  EXPECT_EQ(key_text(keys[1]), "abcd01");
  EXPECT_EQ(match_.lease_ms, 5u);
}

TEST_P(HotRequests, MatchReadsEscapesInStrings) {
  ASSERT_TRUE(match(R"({"keys": ["\u0061b"], "lease_ms": 0})"));
  EXPECT_EQ(key_text(match_.keys.views()[0]), "ab");
}

TEST_P(HotRequests, MinusZeroIsZero) {
  ASSERT_TRUE(match(R"({"keys": ["01"], "wait_ms": -0})"));
  EXPECT_EQ(match_.wait_ms, 0u);
}

TEST_P(HotRequests, MatchForgetsTheRequestBefore) {
  ASSERT_TRUE(match(R"({"tokens": [1, 2], "salt": "s", "onboard": "device", "wait_ms": 9})"));
  ASSERT_TRUE(match(R"({"keys": ["01"]})"));
  EXPECT_EQ(match_.keys.size(), 1u);
  EXPECT_FALSE(match_.has_tokens);
  EXPECT_TRUE(match_.tokens.empty());
  EXPECT_FALSE(match_.salt);
  EXPECT_FALSE(match_.onboard);
  EXPECT_FALSE(match_.lease_ms);
  EXPECT_EQ(match_.wait_ms, 0u);
}

TEST_P(HotRequests, MatchReadsTokens) {
  ASSERT_TRUE(match(R"({"tokens": [0, 4294967295], "salt": "tenant \"a\""})"));
  EXPECT_THAT(match_.tokens, ::testing::ElementsAre(0u, 4294967295u));
  EXPECT_EQ(match_.salt, "tenant \"a\"");
}

TEST_P(HotRequests, AllocateHasDefaults) {
  const auto body = allocate(R"({"count": 8})");
  ASSERT_TRUE(body) << body.error().detail;
  EXPECT_EQ(body->count, 8u);
  EXPECT_FALSE(body->tier);
  EXPECT_FALSE(body->lease_ms);
  EXPECT_EQ(body->priority, 50);
}

TEST_P(HotRequests, CommitReadsEveryField) {
  const auto body = commit(std::string(R"({"lease": ")") + std::string(kLease) +
                           R"(", "blocks": [
      {"tier": "pinned", "slot": 17, "generation": 18446744073709551615, "key": "aa",
       "parent": "bb", "metadata": {"a": [1, "}"]}, "ttl_ms": 60},
      {"tier": "disk", "slot": 0, "generation": 1, "key": "cc", "parent": null}]})");
  ASSERT_TRUE(body) << body.error().detail;
  EXPECT_EQ(lease_text(body->lease), kLease);
  ASSERT_EQ(body->blocks.size(), 2u);
  EXPECT_EQ(body->blocks[0].handle,
            (BlockHandle{.tier = Tier::pinned, .slot = 17, .generation = UINT64_MAX}));
  EXPECT_EQ(key_text(body->blocks[0].key), "aa");
  EXPECT_EQ(key_text(*body->blocks[0].parent), "bb");
  EXPECT_EQ(body->blocks[0].metadata, R"({"a":[1,"}"]})");
  EXPECT_EQ(body->blocks[0].ttl_ms, 60u);
  EXPECT_FALSE(body->blocks[1].parent);
  EXPECT_EQ(body->blocks[1].metadata, "");
}

TEST_P(HotRequests, ReleaseIgnoresTheKeysOfItsBlocks) {
  const auto body =
      release(R"({"blocks": [{"key": "a0", "tier": "disk", "slot": 2, "generation": 3}]})");
  ASSERT_TRUE(body) << body.error().detail;
  EXPECT_EQ(body->blocks, (std::vector<BlockHandle>{{Tier::disk, 2, 3}}));
}

TEST_P(HotRequests, ReleaseWithoutBlocksReleasesAll) {
  const auto body = release(R"({"to_lease": "0000000700112233445566778899aabb"})");
  ASSERT_TRUE(body) << body.error().detail;
  EXPECT_TRUE(body->blocks.empty());
  EXPECT_EQ(lease_text(*body->to_lease), kLease);
}

TEST_P(HotRequests, ReleaseReadsTheTokenCounts) {
  const auto body = release(R"({"input_tokens": 4000, "output_tokens": 0})");
  ASSERT_TRUE(body) << body.error().detail;
  EXPECT_EQ(body->input_tokens, 4000U);
  EXPECT_EQ(body->output_tokens, 0U);
  EXPECT_FALSE(release("{}")->output_tokens);
}

TEST_P(HotRequests, ReadTheReuseHintAndSession) {
  using enum ReuseHint::Kind;
  EXPECT_EQ(release("{}")->hint.reuse, ReuseHint{});
  EXPECT_EQ(release(R"({"reuse": "never"})")->hint.reuse, ReuseHint{.kind = never});
  EXPECT_EQ(release(R"({"reuse": "so\u006fn"})")->hint.reuse, ReuseHint{.kind = soon});
  EXPECT_EQ(release(R"({"reuse": "later", "session": "a \"chat\""})")->hint.session, "a \"chat\"");
  EXPECT_EQ(release(R"({"reuse": { "within_ms" : 5e3 }})")->hint.reuse,
            (ReuseHint{.kind = within, .within_ms = 5000}));
  ASSERT_TRUE(match(R"({"reuse": {"within_ms": 0}, "keys": ["aa"], "session": "s"})"));
  EXPECT_EQ(match_.hint.reuse, (ReuseHint{.kind = within, .within_ms = 0}));
  EXPECT_EQ(match_.hint.session, "s");
  ASSERT_TRUE(match(R"({"keys": ["aa"]})"));
  EXPECT_EQ(match_.hint.session, "") << "the request before had a session";
  const auto body = commit(R"({"lease": "0000000700112233445566778899aabb", "blocks": [],
                               "reuse": "soon", "session": "t"})");
  ASSERT_TRUE(body) << body.error().detail;
  EXPECT_EQ(body->hint.reuse, ReuseHint{.kind = soon});
  EXPECT_EQ(body->hint.session, "t");
}

TEST(ReuseHint, RoundsTimesUpToSteps) {
  const auto within = [](std::uint64_t ms) {
    return ReuseHint{.kind = ReuseHint::Kind::within, .within_ms = ms}.next_use();
  };
  EXPECT_EQ(within(0), NextUse::within_30_s);
  EXPECT_EQ(within(30'000), NextUse::within_30_s);
  EXPECT_EQ(within(30'001), NextUse::within_120_s);
  EXPECT_EQ(within(400'000), NextUse::within_400_s);
  EXPECT_EQ(within(400'001), NextUse::later);
  EXPECT_EQ(within(UINT64_MAX), NextUse::later);
  EXPECT_EQ(ReuseHint{}.next_use(), NextUse::unknown);
}

TEST_P(HotRequests, AcceptWholeNumbersInAnyNotation) {
  for (const char* number : {"286.0", "2.86e2", "286", "28600E-2"}) {
    const auto body = allocate(std::string(R"({"count": )") + number + "}");
    ASSERT_TRUE(body) << number << ": " << body.error().detail;
    EXPECT_EQ(body->count, 286u);
  }
  EXPECT_EQ(allocate(R"({"count": 1, "lease_ms": -0.0})")->lease_ms, 0u);
  EXPECT_EQ(allocate(R"({"count": -3.0})").error().code, ErrorCode::out_of_range);
  EXPECT_EQ(allocate(R"({"count": 286.5})").error().code, ErrorCode::wrong_type);
}

TEST_P(HotRequests, CommitReadsTheOptionsOfAWrite) {
  const auto body =
      commit(R"({"lease": "0000000700112233445566778899aabb", "release": true, "blocks": [
      {"tier": "disk", "slot": 1, "generation": 1, "key": "aa", "priority": 3, "if_exists": "error"},
      {"tier": "disk", "slot": 2, "generation": 1, "key": "bb", "if_exists": "duplicate"}]})");
  ASSERT_TRUE(body) << body.error().detail;
  EXPECT_TRUE(body->release);
  EXPECT_EQ(body->blocks[0].priority, 3u);
  EXPECT_TRUE(body->blocks[0].refuse_duplicate);
  EXPECT_FALSE(body->blocks[1].priority);
  EXPECT_FALSE(body->blocks[1].refuse_duplicate);
}

TEST_P(HotRequests, ReleaseReadsHandles) {
  const auto body = release(R"({"blocks": [{"generation": 3, "tier": "device", "slot": 2}]})");
  ASSERT_TRUE(body) << body.error().detail;
  ASSERT_EQ(body->blocks.size(), 1u);
  EXPECT_EQ(body->blocks[0], (BlockHandle{.tier = Tier::device, .slot = 2, .generation = 3}));
}

TEST_P(HotRequests, RenewMayOmitTheTime) {
  const auto body = renew("{}");
  ASSERT_TRUE(body);
  EXPECT_FALSE(body->lease_ms);
}

TEST_P(HotRequests, MatchReadsUpToItsLimits) {
  ASSERT_TRUE(match(R"({"keys": ["aa", "bb"]})", {.max_keys = 2}));
  EXPECT_EQ(match_.keys.size(), 2u);
  ASSERT_TRUE(match(R"({"tokens": [1, 2, 3]})", {.max_tokens = 3}));
  EXPECT_EQ(match_.tokens.size(), 3u);
}

TEST_P(HotRequests, MatchRefusesMoreThanItsLimits) {
  const auto keys = match(R"({"keys": ["aa", "bb", "cc", "no key"]})", {.max_keys = 2});
  ASSERT_FALSE(keys);
  EXPECT_EQ(to_string(keys.error().code), "out_of_range");
  EXPECT_THAT(keys.error().detail, HasSubstr("keys has more elements than the 2"));
  EXPECT_LE(match_.keys.size(), 2u);
  const auto tokens = match(R"({"tokens": [1, 2, 3, 4, "x"]})", {.max_tokens = 3});
  ASSERT_FALSE(tokens);
  EXPECT_EQ(to_string(tokens.error().code), "out_of_range");
  EXPECT_THAT(tokens.error().detail, HasSubstr("tokens has more elements than the 3"));
  EXPECT_LE(match_.tokens.size(), 3u);
}

TEST_P(HotRequests, CommitAndReleaseStopAtTheBlockLimit) {
  constexpr std::string_view kBlock =
      R"({"tier": "disk", "slot": 0, "generation": 1, "key": "aa"})";
  const std::string two = std::string(kBlock) + "," + std::string(kBlock);
  const std::string lease = R"({"lease": ")" + std::string(kLease) + R"(", "blocks": [)";
  EXPECT_TRUE(commit(lease + two + "]}", 2));
  EXPECT_TRUE(release(R"({"blocks": [)" + two + "]}", 2));
  const auto committed = commit(lease + two + ", 7]}", 2);
  ASSERT_FALSE(committed);
  EXPECT_EQ(to_string(committed.error().code), "out_of_range") << committed.error().detail;
  const auto released = release(R"({"blocks": [)" + two + ", 7]}", 2);
  ASSERT_FALSE(released);
  EXPECT_EQ(to_string(released.error().code), "out_of_range") << released.error().detail;
}

TEST(MatchLimits, CountTheTokensOfAPartialPage) {
  EXPECT_EQ(MatchLimits::of(3, 16).max_keys, 3u);
  EXPECT_EQ(MatchLimits::of(3, 16).max_tokens, 63u);
  EXPECT_EQ(MatchLimits::of(65'536, UINT64_MAX).max_tokens, UINT64_MAX);
}

// The memory that a thread keeps between two matches.
TEST(MatchBody, FreesTheMemoryOfAHugeRequest) {
  MatchBody body;
  body.tokens.resize(kMaxKeptBytes);
  const std::vector<std::byte> key(64);
  while (body.keys.size() < 60'000) body.keys.add(key);
  static_cast<void>(body.keys.views());
  EXPECT_GT(body.keys.capacity_bytes(), 60'000 * 64u);
  body.clear();
  EXPECT_EQ(body.tokens.capacity(), 0u);
  EXPECT_LE(body.keys.capacity_bytes(), 3 * kMaxKeptBytes);
}

TEST(MatchBody, KeepsTheMemoryOfAnOrdinaryRequest) {
  MatchBody body;
  body.tokens.resize(1000);
  const auto room = body.tokens.capacity();
  const std::vector<std::byte> key(32);
  while (body.keys.size() < 1000) body.keys.add(key);
  const auto key_room = body.keys.capacity_bytes();
  body.clear();
  EXPECT_EQ(body.tokens.capacity(), room);
  EXPECT_EQ(body.keys.capacity_bytes(), key_room);
}

struct Wrong {
  const char* body;
  ErrorCode code;
  const char* names;  // what the detail must say
};

template <class Read>
void expect_refused(std::span<const Wrong> table, Read&& read) {
  for (const Wrong& wrong : table) {
    SCOPED_TRACE(wrong.body);
    const auto result = read(wrong.body);
    ASSERT_FALSE(result);
    EXPECT_EQ(to_string(result.error().code), to_string(wrong.code)) << result.error().detail;
    EXPECT_THAT(result.error().detail, HasSubstr(wrong.names));
  }
}

// MessagePack has no integers of more than 64 bits, so such a number becomes a fraction there.
TEST_P(HotRequests, NumbersOfMoreThan64BitsNameTheirField) {
  const auto refused = match(R"({"keys": ["aa"], "lease_ms": 99999999999999999999})");
  ASSERT_FALSE(refused);
  EXPECT_EQ(to_string(refused.error().code),
            GetParam() == Way::text ? "out_of_range" : "wrong_type");
  EXPECT_THAT(refused.error().detail, HasSubstr("lease_ms"));
}

TEST_P(HotRequests, WrongMatchesNameTheirField) {
  constexpr Wrong kTable[] = {
      {R"({"keys": ["aa"], "colour": 1})", ErrorCode::unknown_field, "colour"},
      {R"({"lease_ms": 1})", ErrorCode::missing_field, "keys"},
      {R"({"keys": ["aa"], "tokens": [1]})", ErrorCode::malformed, "tokens"},
      {R"({"keys": ["aa"], "salt": "x"})", ErrorCode::malformed, "salt"},
      {R"({"keys": "aa"})", ErrorCode::wrong_type, "keys"},
      {R"({"keys": {"a": 1}})", ErrorCode::wrong_type, "keys"},
      {R"({"keys": [17]})", ErrorCode::wrong_type, "keys[0]"},
      {R"({"keys": ["aa", null]})", ErrorCode::wrong_type, "keys[1]"},
      {R"({"keys": ["aa", "xy"]})", ErrorCode::malformed, "keys[1]"},
      {R"({"keys": ["abc"]})", ErrorCode::malformed, "keys[0]"},
      {R"({"keys": [""]})", ErrorCode::malformed, "keys[0]"},
      {R"({"keys": ["aa"], "lease_ms": -1})", ErrorCode::out_of_range, "lease_ms is -1"},
      {R"({"keys": ["aa"], "lease_ms": 4294967296})", ErrorCode::out_of_range, "4294967295"},
      {R"({"keys": ["aa"], "lease_ms": 1.5})", ErrorCode::wrong_type, "lease_ms"},
      {R"({"keys": ["aa"], "lease_ms": "1"})", ErrorCode::wrong_type, "lease_ms"},
      {R"({"keys": ["aa"], "lease_ms": true})", ErrorCode::wrong_type, "lease_ms"},
      {R"({"tokens": [4294967296]})", ErrorCode::out_of_range, "tokens[0]"},
      {R"({"tokens": [1, -2]})", ErrorCode::out_of_range, "tokens[1]"},
      {R"({"tokens": [1, 2.5]})", ErrorCode::wrong_type, "tokens[1]"},
      {R"({"keys": ["aa"], "onboard": "moon"})", ErrorCode::out_of_range, "moon"},
      {R"({"keys": ["aa"], "wait_ms": 60001})", ErrorCode::out_of_range, "60000"},
      {R"({"keys": ["aa"], "onboard": "device", "lease_ms": 0})", ErrorCode::out_of_range,
       "lease_ms"},
      {R"([])", ErrorCode::wrong_type, "the body"},
      {R"("keys")", ErrorCode::wrong_type, "the body"},
      {R"({"keys": ["aa"], "keys": ["bb"]})", ErrorCode::malformed, "keys"},
  };
  expect_refused(kTable, [this](const char* body) { return match(body); });
  // One byte more than a key may have.
  const std::string long_key = R"({"keys": [")" + std::string(130, 'a') + R"("]})";
  const auto refused = match(long_key);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::malformed);
}

TEST_P(HotRequests, WrongAllocationsNameTheirField) {
  constexpr Wrong kTable[] = {
      {R"({})", ErrorCode::missing_field, "count"},
      {R"({"count": 0})", ErrorCode::out_of_range, "count is 0"},
      {R"({"count": 4294967296})", ErrorCode::out_of_range, "count"},
      {R"({"count": 1, "priority": 101})", ErrorCode::out_of_range, "priority is 101"},
      {R"({"count": 1, "tier": 3})", ErrorCode::wrong_type, "tier"},
      {R"({"count": 1, "teir": "device"})", ErrorCode::unknown_field,
       "teir is no field of this object; did you mean 'tier'?"},
      {R"({"count": [1]})", ErrorCode::wrong_type, "count"},
  };
  expect_refused(kTable, [this](const char* body) { return allocate(body); });
}

TEST_P(HotRequests, WrongCommitsNameTheirField) {
  constexpr Wrong kTable[] = {
      {R"({"blocks": []})", ErrorCode::missing_field, "lease"},
      {R"({"lease": "0000000700112233445566778899aabb"})", ErrorCode::missing_field, "blocks"},
      {R"({"lease": "07", "blocks": []})", ErrorCode::malformed, "lease"},
      {R"({"lease": 7, "blocks": []})", ErrorCode::wrong_type, "lease"},
      {R"({"lease": "0000000700112233445566778899aabb", "blocks": [7]})", ErrorCode::wrong_type,
       "blocks[0]"},
      {R"({"lease": "0000000700112233445566778899aabb",
           "blocks": [{"tier": "disk", "slot": 1, "generation": 1}]})",
       ErrorCode::missing_field, "blocks[0].key"},
      {R"({"lease": "0000000700112233445566778899aabb",
           "blocks": [{"tier": "disk", "slot": -1, "generation": 1, "key": "aa"}]})",
       ErrorCode::out_of_range, "blocks[0].slot"},
      {R"({"lease": "0000000700112233445566778899aabb",
           "blocks": [{"tier": "disk", "slot": 1, "generation": 1, "key": "a"}]})",
       ErrorCode::malformed, "blocks[0].key"},
      {R"({"lease": "0000000700112233445566778899aabb",
           "blocks": [{"tier": "disk", "slot": 1, "generation": 1, "key": "aa", "metadata": []}]})",
       ErrorCode::wrong_type, "blocks[0].metadata"},
      {R"({"lease": "0000000700112233445566778899aabb",
           "blocks": [{"tier": "disk", "slot": 1, "generation": 1, "key": "aa", "ttl_ms": 0}]})",
       ErrorCode::out_of_range, "blocks[0].ttl_ms"},
      {R"({"lease": "0000000700112233445566778899aabb",
           "blocks": [{"tier": "disk", "slot": 1, "generation": 1, "key": "aa", "priority": 101}]})",
       ErrorCode::out_of_range, "blocks[0].priority"},
      {R"({"lease": "0000000700112233445566778899aabb",
           "blocks": [{"tier": "disk", "slot": 1, "generation": 1, "key": "aa", "if_exists": "x"}]})",
       ErrorCode::out_of_range, "blocks[0].if_exists"},
      {R"({"lease": "0000000700112233445566778899aabb", "blocks": [], "release": 1})",
       ErrorCode::wrong_type, "release"},
      {R"({"lease": "0000000700112233445566778899aabb",
           "blocks": [{"tier": "disk", "slot": 1, "generation": 1, "key": "aa", "x": 0}]})",
       ErrorCode::unknown_field, "blocks[0].x"},
  };
  expect_refused(kTable, [this](const char* body) { return commit(body); });
}

TEST_P(HotRequests, WrongReleasesNameTheirField) {
  constexpr Wrong kTable[] = {
      {R"({"blocks": []})", ErrorCode::out_of_range, "blocks"},
      {R"({"to_lease": "07"})", ErrorCode::malformed, "to_lease"},
      {R"({"output_tokens": -1})", ErrorCode::out_of_range, "output_tokens"},
      {R"({"input_tokens": "many"})", ErrorCode::wrong_type, "input_tokens"},
      {R"({"reuse": "often"})", ErrorCode::out_of_range, "reuse"},
      {R"({"reuse": 5})", ErrorCode::wrong_type, "reuse"},
      {R"({"reuse": {}})", ErrorCode::missing_field, "reuse.within_ms"},
      {R"({"reuse": {"within_ms": "x"}})", ErrorCode::wrong_type, "reuse.within_ms"},
      {R"({"reuse": {"within_ms": 1, "x": 1}})", ErrorCode::unknown_field, "reuse.x"},
      {R"({"session": ""})", ErrorCode::out_of_range, "session"},
      {R"({"session": ["a"]})", ErrorCode::wrong_type, "session"},
      {R"({"blocks": [{"tier": "device", "slot": 2}]})", ErrorCode::missing_field,
       "blocks[0].generation"},
      {R"({"blocks": [{"tier": "device", "slot": 2, "generation": 1, "keys": "aa"}]})",
       ErrorCode::unknown_field, "blocks[0].keys"},
      {R"({"blocks": [{"tier": "device", "slot": 2, "generation": 1, "key": 7}]})",
       ErrorCode::wrong_type, "blocks[0].key"},
  };
  expect_refused(kTable, [this](const char* body) { return release(body); });
}

TEST(HotJson, TextThatIsNoJsonIsMalformed) {
  for (const char* body : {"",
                           " ",
                           "{",
                           "}",
                           "{\"keys\":",
                           "{\"keys\": [\"aa\"",
                           "{\"keys\": [\"aa\"]",
                           "{\"keys\": [\"aa\"}}",
                           "{\"keys\": [\"aa\"]} x",
                           "{\"keys\": [\"aa\"]}{}",
                           "{\"keys\": [\"aa\",]}",
                           "{\"keys\": [\"aa\" \"bb\"]}",
                           "{\"keys\" [\"aa\"]}",
                           "{\"keys\": [\"aa]}",
                           "{\"keys\": [\"a\na\"]}",
                           "{\"keys\": [\"aa\": \"bb\"]}",
                           "{\"tokens\": [1], \"salt\": \"a\": \"b\"}",
                           "{keys: []}",
                           "{\"lease_ms\": NaN}",
                           "{\"lease_ms\": 01, \"keys\": []}",
                           "{\"lease_ms\": 1x}",
                           "{\"lease_ms\": tru}",
                           "{\"keys\": [\"aa\"], \"salt\": \"\xff\"}"}) {
    SCOPED_TRACE(body);
    MatchBody out;
    const auto read = hot_json::read_match(fakes::PaddedBody(body).bytes(), kLimits, out);
    ASSERT_FALSE(read);
    EXPECT_EQ(to_string(read.error().code), "malformed") << read.error().detail;
  }
}

TEST_P(HotRequests, InvalidNumberIsMalformed) {
  for (const char* number : {"1e400", "-1E400", "5.", "1e", "1e+", "--1", "-", "+1", ".5", "01",
                             "-01", "1.e3", "0x1", "1-1"}) {
    SCOPED_TRACE(number);
    const auto in_field = match(R"({"keys": [], "lease_ms": )" + std::string(number) + "}");
    ASSERT_FALSE(in_field);
    EXPECT_EQ(to_string(in_field.error().code), "malformed") << in_field.error().detail;
    const auto in_list = match(R"({"tokens": [1, )" + std::string(number) + "]}");
    ASSERT_FALSE(in_list);
    EXPECT_EQ(to_string(in_list.error().code), "malformed") << in_list.error().detail;
  }
}

TEST_P(HotRequests, AByteOrderMarkIsIgnored) {
  ASSERT_TRUE(match("\xEF\xBB\xBF{\"tokens\": [7]}"));
  EXPECT_THAT(match_.tokens, ::testing::ElementsAre(7u));
  EXPECT_FALSE(match("\xEF\xBB\xBF"));
  EXPECT_FALSE(match("\xEF\xBB{\"tokens\": [7]}"));
  EXPECT_FALSE(match("\xEF\xBB\xBF\xEF\xBB\xBF{\"tokens\": [7]}"));
}

TEST(HotJson, HugeNumbersAreNoIntegers) {
  for (const char* number : {"1e40", "-1e40", "1.5", "1e-1"}) {
    SCOPED_TRACE(number);
    MatchBody out;
    const std::string body = R"({"keys": [], "lease_ms": )" + std::string(number) + "}";
    const auto read = hot_json::read_match(fakes::PaddedBody(body).bytes(), kLimits, out);
    ASSERT_FALSE(read);
    EXPECT_EQ(to_string(read.error().code), "wrong_type") << read.error().detail;
    EXPECT_THAT(read.error().detail, HasSubstr("lease_ms"));
  }
}

TEST(HotJson, DeepNestingIsRefused) {
  const CacheConfig config{.name = "c", .shape = {}, .tiers = {}};
  const std::string deep = R"({"keys": )" + std::string(1'000'000, '[');
  MatchBody out;
  EXPECT_FALSE(hot_json::read_match(fakes::PaddedBody(deep).bytes(), kLimits, out));
  const std::string metadata = R"({"blocks": [{"metadata": {"a": )" + std::string(100'000, '[') +
                               std::string(100'000, ']') + "}}]}";
  EXPECT_FALSE(hot_json::read_commit(fakes::PaddedBody(metadata).bytes(),
                                     {.max_blocks = kMaxBlocks, .groups = KvGroupNames(config)}));
}

TEST(HotJson, RenewAcceptsAnEmptyBody) { EXPECT_TRUE(hot_json::read_renew({})); }

TEST(HotJson, ReadsABodyLargerThanTheKeptMemory) {
  std::string body = R"({"keys": [)";
  constexpr std::size_t kCount = 20'000;
  for (std::size_t i = 0; i < kCount; ++i) {
    body += (i == 0 ? "\"" : ",\"") + std::string(64, 'e') + "\"";
  }
  body += "]}";
  MatchBody out;
  ASSERT_TRUE(hot_json::read_match(fakes::PaddedBody(body).bytes(), kLimits, out));
  EXPECT_EQ(out.keys.size(), kCount);
}

}  // namespace
}  // namespace cairn
