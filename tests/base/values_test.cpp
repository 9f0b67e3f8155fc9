// Errors, results, ids and checked arithmetic.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>
#include <string>
#include <unordered_set>

#include "base/assert.hpp"
#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/result.hpp"
#include "base/strong_id.hpp"
#include "base/token.hpp"

namespace cairn {
namespace {

constexpr std::uint64_t kMost = ~std::uint64_t{0};

TEST(ErrorCode, HasADistinctWordForEveryValue) {
  std::set<std::string> words;
  const auto last = static_cast<int>(ErrorCode::internal);
  for (int code = 0; code <= last; ++code) {
    words.insert(std::string(to_string(static_cast<ErrorCode>(code))));
  }
  EXPECT_EQ(words.size(), static_cast<std::size_t>(last) + 1);
  EXPECT_EQ(words.count(""), 0u);
  EXPECT_EQ(to_string(ErrorCode::stale_generation), "stale_generation");
}

Result<int> half_of(int number) {
  if (number % 2 != 0) return Error{ErrorCode::out_of_range, "odd"};
  return number / 2;
}

Result<std::string> text_of_half(int number) {
  CAIRN_TRY(half_of(number));
  return std::to_string(half_of(number).value());
}

TEST(Result, HoldsAValueOrAnError) {
  EXPECT_EQ(half_of(8).value(), 4);
  EXPECT_EQ(half_of(7).error().code, ErrorCode::out_of_range);
}

TEST(Result, TryReturnsTheError) {
  EXPECT_EQ(text_of_half(8).value(), "4");
  EXPECT_EQ(text_of_half(7).error().detail, "odd");
}

TEST(Result, HoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> made = std::make_unique<int>(5);
  const std::unique_ptr<int> taken = std::move(made).value();
  EXPECT_EQ(*taken, 5);
}

TEST(ResultDeathTest, ValueOfAnErrorAborts) {
  EXPECT_DEATH(static_cast<void>(half_of(7).value()), "invariant broken.*odd");
}

TEST(AssertDeathTest, SaysWhereAndWhy) {
  EXPECT_DEATH(CAIRN_ASSERT(1 == 2, "numbers are broken"),
               "values_test.cpp:[0-9]+: 1 == 2 \\(numbers are broken\\)");
}

TEST(Checked, AddsUpToTheMaximum) {
  EXPECT_EQ(checked_add<std::uint64_t>(kMost - 1, 1), kMost);
  EXPECT_EQ(checked_add<std::uint64_t>(kMost, 1), std::nullopt);
  EXPECT_EQ(checked_add<std::uint8_t>(255, 1), std::nullopt);
}

TEST(Checked, MultipliesUpToTheMaximum) {
  EXPECT_EQ(checked_mul<std::uint64_t>(kMost, 1), kMost);
  EXPECT_EQ(checked_mul<std::uint64_t>(kMost / 2 + 1, 2), std::nullopt);
}

TEST(Checked, MultipliesManyFactors) {
  EXPECT_EQ(checked_product({}), 1u);
  EXPECT_EQ(checked_product({2, 3, 7}), 42u);
  EXPECT_EQ(checked_product({kMost, kMost, 0}), std::nullopt);
}

TEST(Checked, MultipliesAsWiderArithmeticDoes) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  __extension__ using Wide = unsigned __int128;
  for (int round = 0; round < 10'000; ++round) {
    const std::uint64_t a = random() >> (random() % 64);
    const std::uint64_t b = random() >> (random() % 64);
    const Wide product = Wide{a} * b;
    const auto checked = checked_mul(a, b);
    ASSERT_EQ(checked.has_value(), product <= kMost) << a << " * " << b;
    if (checked) {
      ASSERT_TRUE(product == *checked);
    }
  }
}

TEST(Checked, AlignsUpToTheNextMultiple) {
  EXPECT_EQ(checked_align_up(0, 512), 0u);
  EXPECT_EQ(checked_align_up(1, 512), 512u);
  EXPECT_EQ(checked_align_up(512, 512), 512u);
  EXPECT_EQ(checked_align_up(513, 1), 513u);
  EXPECT_EQ(checked_align_up(kMost, 512), std::nullopt);
}

TEST(Checked, KnowsPowersOfTwo) {
  EXPECT_TRUE(is_power_of_two(1));
  EXPECT_TRUE(is_power_of_two(std::uint64_t{1} << 63));
  EXPECT_FALSE(is_power_of_two(0));
  EXPECT_FALSE(is_power_of_two(kMost));
}

TEST(StrongId, ComparesAndHashesByItsNumber) {
  using Id = StrongId<struct Tag>;
  EXPECT_EQ(Id{3}, Id{3});
  EXPECT_LT(Id{3}, Id{4});
  EXPECT_EQ((std::unordered_set<Id>{Id{3}, Id{3}, Id{4}}.size()), 2u);
}

TEST(BearerToken, IsTrimmed) {
  for (const char* given : {"secret-1", "secret-1\n", "secret-1\r\n", " \tsecret-1 \v\f"}) {
    const auto token = bearer_token(given, "a file");
    ASSERT_TRUE(token) << token.error().detail;
    EXPECT_EQ(*token, "secret-1");
  }
  EXPECT_EQ(bearer_token("", "a file").value(), "");
}

TEST(BearerToken, RefusalNamesTheSourceAndNotTheToken) {
  for (const std::string given :
       {"sec ret", "sec\nret", "sec\r\nret: 1", "s\u00e9cret", "sec\177ret", " \n"}) {
    const auto token = bearer_token(given, "CAIRN_TOKEN");
    ASSERT_FALSE(token) << given;
    EXPECT_TRUE(token.error().detail.starts_with("CAIRN_TOKEN has white space"));
    EXPECT_EQ(token.error().detail.find("ret"), std::string::npos) << token.error().detail;
  }
}

}  // namespace
}  // namespace cairn
