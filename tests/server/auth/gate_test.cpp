#include "server/auth/gate.hpp"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/fakes/manual_clock.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn {
namespace {

using ::testing::HasSubstr;

constexpr const char* kToken = "correct-horse-battery-staple";
// printf correct-horse-battery-staple | sha256sum
constexpr const char* kHash = "87cbebfeebc05f7c54ac9336c4b4bbec831227a641951a4bde7edd56020f8590";

std::string file_of(const std::string& members) { return R"({"tokens": [)" + members + "]}"; }
std::string token_of(const std::string& more = R"("role": "write")") {
  return std::string(R"({"name": "engine", "sha256": ")") + kHash + R"(", )" + more + "}";
}

TEST(TokenHash, IsTheSha256InHex) {
  const auto hash = token_hash(kToken);
  ASSERT_TRUE(hash);
  EXPECT_EQ(*hash, kHash);
}

TEST(TokenHash, RefusesAShortToken) {
  EXPECT_FALSE(token_hash(""));
  EXPECT_FALSE(token_hash(std::string(kMinTokenBytes - 1, 'x')));
  EXPECT_TRUE(token_hash(std::string(kMinTokenBytes, 'x')));
}

TEST(TokenSet, FindsATokenAndNoOther) {
  auto set = TokenSet::parse(file_of(token_of()), TokenSet());
  ASSERT_TRUE(set) << set.error().detail;
  const auto caller = set->find(kToken);
  ASSERT_NE(caller, nullptr);
  EXPECT_EQ(caller->name(), "engine");
  EXPECT_EQ(caller->role(), Role::write);
  EXPECT_FALSE(caller->is_confined());
  for (const char* other :
       {"", "correct-horse-battery-stapl", "correct-horse-battery-staple ", kHash}) {
    EXPECT_EQ(set->find(other), nullptr) << other;
  }
}

TEST(TokenSet, NamesTheWrongFieldOfAFile) {
  struct Case {
    std::string text;
    const char* names;
  };
  const Case cases[] = {
      {"", "malformed"},
      {"[]", "object"},
      {"{}", "tokens"},
      {file_of("1"), "tokens[0]"},
      {file_of(R"({"name": "a", "role": "read"})"), "tokens[0].sha256"},
      {file_of(R"({"name": "a", "role": "read", "sha256": "abc"})"), "tokens[0].sha256"},
      {file_of(token_of(R"("role": "root")")), "tokens[0].role"},
      {file_of(token_of(R"("role": "read", "caches": [])")), "tokens[0].caches"},
      {file_of(token_of(R"("role": "read", "caches": ["../x"])")), "tokens[0].caches"},
      {file_of(token_of(R"("role": "read", "requests_per_s": 0)")), "tokens[0].requests_per_s"},
      {file_of(token_of(R"("role": "read", "password": "x")")), "tokens[0].password"},
      {file_of(token_of(R"("role": "read", "max_blocks": {"tape": 1})")), "tokens[0].max_blocks"},
      {file_of(token_of() + "," + token_of(R"("role": "read")")), "tokens[1]"},
  };
  for (const Case& wrong : cases) {
    const auto set = TokenSet::parse(wrong.text, TokenSet());
    ASSERT_FALSE(set) << wrong.text;
    if (std::string(wrong.names) != "malformed") {
      EXPECT_THAT(set.error().detail, HasSubstr(wrong.names)) << wrong.text;
    }
  }
}

class GateTest : public ::testing::Test {
 protected:
  void write(const std::string& text) { std::ofstream(path_) << text; }
  std::unique_ptr<Gate> open() {
    auto gate = Gate::open(path_, clock_);
    if (!gate) throw std::runtime_error(gate.error().detail);
    return std::move(*gate);
  }
  static Result<std::shared_ptr<const Caller>> admit(const Gate& gate, std::string_view field,
                                                     http::Method method = http::Method::get) {
    http::RequestHead head;
    head.method = method;
    head.authorization = field;
    return gate.admit(head);
  }

  fakes::TempDir folder_;
  fakes::ManualClock clock_;
  const std::string path_ = (folder_.path() / "tokens.json").string();
  const std::string bearer_ = std::string("Bearer ") + kToken;
};

TEST_F(GateTest, AcceptsOnlyABearerTokenInAnyCase) {
  write(file_of(token_of()));
  const auto gate = open();
  for (const std::string& right :
       {bearer_, std::string("bearer  ") + kToken, std::string("BEARER ") + kToken}) {
    EXPECT_TRUE(admit(*gate, right)) << right;
  }
  for (const std::string& wrong :
       {std::string(), std::string(kToken), std::string("Bearer"), std::string("Bearer "),
        bearer_ + "x", "Token " + std::string(kToken), bearer_ + std::string(1000, ' '),
        std::string("Basic "), std::string("Basic !!!!"), std::string("Basic eA==")}) {
    const auto refused = admit(*gate, wrong);
    ASSERT_FALSE(refused) << wrong;
    EXPECT_EQ(refused.error().code, ErrorCode::unauthorized);
    EXPECT_THAT(refused.error().detail, ::testing::Not(HasSubstr(kToken)));
  }
}

TEST_F(GateTest, AcceptsBasicCredentialsOnlyForReading) {
  write(file_of(token_of()));
  const auto gate = open();
  // printf 'me:correct-horse-battery-staple' | base64
  const std::string basic = "Basic bWU6Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5LXN0YXBsZQ==";
  EXPECT_TRUE(admit(*gate, basic, http::Method::get));
  EXPECT_TRUE(admit(*gate, basic, http::Method::head));
  for (const auto method : {http::Method::put, http::Method::post, http::Method::delete_}) {
    EXPECT_FALSE(admit(*gate, basic, method));
  }
}

TEST_F(GateTest, KnowsTheCallerOfARefusedRequest) {
  write(file_of(token_of()));
  const auto gate = open();
  http::RequestHead head;
  head.method = http::Method::delete_;
  const std::string basic = "Basic bWU6Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5LXN0YXBsZQ==";
  for (const std::string& known : {bearer_, basic}) {
    head.authorization = known;
    ASSERT_NE(gate->presented(head), nullptr) << known;
  }
  for (const std::string& unknown : {std::string(), bearer_ + "x", std::string("Basic eA==")}) {
    head.authorization = unknown;
    EXPECT_EQ(gate->presented(head), nullptr) << unknown;
  }
}

TEST_F(GateTest, RefusesWrongBase64Padding) {
  write(file_of(token_of()));
  const auto gate = open();
  for (const std::string& wrong :
       {std::string("===="), std::string("="), std::string("=="), std::string("==="),
        std::string("a==="), std::string("=a=="), std::string("a=b="), std::string("ab=c"),
        std::string("YTpi===="), std::string("YTo=YTpi"), std::string("YTp"), std::string(400, '='),
        std::string()}) {
    for (const auto method : {http::Method::get, http::Method::head}) {
      const auto refused = admit(*gate, "Basic " + wrong, method);
      ASSERT_FALSE(refused) << wrong;
      EXPECT_EQ(refused.error().code, ErrorCode::unauthorized) << wrong;
    }
  }
}

TEST_F(GateTest, RefusesRequestsOverATokensRate) {
  write(file_of(token_of(R"("role": "read", "requests_per_s": 2)")));
  const auto gate = open();
  EXPECT_TRUE(admit(*gate, bearer_));
  EXPECT_TRUE(admit(*gate, bearer_));
  const auto refused = admit(*gate, bearer_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::too_many);
  clock_.advance_ms(500);
  EXPECT_TRUE(admit(*gate, bearer_));
}

TEST_F(GateTest, KeepsItsTokensIfTheNewFileIsBroken) {
  write(file_of(token_of()));
  const auto gate = open();
  write("{");
  EXPECT_FALSE(gate->reload());
  EXPECT_TRUE(admit(*gate, bearer_));
  write(file_of(""));
  const auto reloaded = gate->reload();
  ASSERT_TRUE(reloaded);
  EXPECT_EQ(*reloaded, 0u);
  EXPECT_FALSE(admit(*gate, bearer_));
}

// Work that outlives its request checks its token again.
TEST_F(GateTest, ReturnsTheCurrentCallerOfAToken) {
  write(file_of(token_of()));
  const auto gate = open();
  const std::uint64_t first = gate->generation();
  const auto caller = *admit(*gate, bearer_);
  EXPECT_EQ(gate->now(*caller), caller);
  write(file_of(token_of(R"("role": "read", "caches": ["a"])")));
  ASSERT_TRUE(gate->reload());
  EXPECT_NE(gate->generation(), first);
  const auto after = gate->now(*caller);
  ASSERT_NE(after, nullptr);
  EXPECT_EQ(after->role(), Role::read);
  EXPECT_FALSE(after->may_touch("b"));
  write(file_of(""));
  ASSERT_TRUE(gate->reload());
  EXPECT_EQ(gate->now(*after), nullptr);
  EXPECT_EQ(gate->now(*caller), nullptr);
}

TEST_F(GateTest, BoundsTheLeasesOfEveryToken) {
  write(file_of(token_of()));
  EXPECT_EQ((*admit(*open(), bearer_))->pins()->limit(), kMaxLeasedBlocks);
  auto gate = Gate::open(path_, clock_, 7);
  ASSERT_TRUE(gate);
  const auto pins = (*admit(**gate, bearer_))->pins();
  EXPECT_EQ(pins->limit(), 7u);
  pins->add(3);
  write(file_of(token_of(R"("role": "write", "max_leased_blocks": 5)")));
  ASSERT_TRUE((*gate)->reload());
  EXPECT_EQ((*admit(**gate, bearer_))->pins()->limit(), 5u);
  EXPECT_EQ((*admit(**gate, bearer_))->pins()->used(), 3u) << "its leases are still there";
}

TEST_F(GateTest, ReloadKeepsTheUsedBlocksOfAToken) {
  write(file_of(token_of(R"("role": "write", "max_blocks": {"pinned": 2})")));
  const auto gate = open();
  const auto quota = (*admit(*gate, bearer_))->quota();
  ASSERT_NE(quota, nullptr);
  quota->add(Tier::pinned);
  EXPECT_TRUE(quota->fits(Tier::pinned, 1));
  EXPECT_FALSE(quota->fits(Tier::pinned, 2));
  EXPECT_TRUE(quota->fits(Tier::disk, 1'000'000));
  write(file_of(token_of(R"("role": "write", "max_blocks": {"pinned": 1})")));
  ASSERT_TRUE(gate->reload());
  EXPECT_FALSE((*admit(*gate, bearer_))->quota()->fits(Tier::pinned, 1));
  quota->remove(Tier::pinned, 1);
  EXPECT_TRUE((*admit(*gate, bearer_))->quota()->fits(Tier::pinned, 1));
}

}  // namespace
}  // namespace cairn
