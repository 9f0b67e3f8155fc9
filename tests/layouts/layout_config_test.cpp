#include "layouts/layout_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr LayoutConfig kGood{.num_blocks = 8,
                             .num_layers = 32,
                             .outer_dim = 2,
                             .page_size = 16,
                             .inner_dim = 1024,
                             .dtype_width_bytes = 2,
                             .alignment = 4096};

struct Rule {
  const char* field;
  std::uint64_t LayoutConfig::*member;
  std::vector<std::uint64_t> good;
  std::vector<std::uint64_t> bad;
  const char* bound;
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> rules{
      {"num_blocks", &LayoutConfig::num_blocks, {1, 4294967295}, {0, 4294967296}, "4294967295"},
      {"num_layers", &LayoutConfig::num_layers, {1, 1024}, {0, 1025}, "1024"},
      {"outer_dim", &LayoutConfig::outer_dim, {1, 1024}, {0, 1025, ~0ull}, "1 to 1024"},
      {"page_size", &LayoutConfig::page_size, {1, 65536}, {0, 65537}, "65536"},
      {"inner_dim", &LayoutConfig::inner_dim, {1, 16777216}, {0, 16777217, ~0ull}, "16777216"},
      {"dtype_width_bytes",
       &LayoutConfig::dtype_width_bytes,
       {1, 2, 4, 8, 16},
       {0, 3, 6, 32, ~0ull},
       "a power of two up to 16"},
      {"alignment",
       &LayoutConfig::alignment,
       {1, 512, 2097152},
       {0, 3, 4095, 4194304, std::uint64_t{1} << 63},
       "a power of two up to 2097152"}};
  return rules;
}

TEST(LayoutConfig, AcceptsEveryFieldAtItsBounds) {
  for (const Rule& rule : rules()) {
    for (const std::uint64_t value : rule.good) {
      LayoutConfig config = kGood;
      config.*rule.member = value;
      EXPECT_TRUE(validate(config).has_value()) << rule.field << " = " << value;
    }
  }
}

TEST(LayoutConfig, NamesTheFieldItsValueAndItsBound) {
  for (const Rule& rule : rules()) {
    for (const std::uint64_t value : rule.bad) {
      LayoutConfig config = kGood;
      config.*rule.member = value;
      const auto checked = validate(config);
      ASSERT_TRUE(checked.has_error()) << rule.field << " = " << value;
      EXPECT_EQ(checked.error().code, ErrorCode::impossible_shape);
      EXPECT_THAT(checked.error().detail,
                  AllOf(HasSubstr(std::string(rule.field) + " is " + std::to_string(value)),
                        HasSubstr(rule.bound)));
    }
  }
}

TEST(LayoutConfig, NamesEveryBrokenRuleAtOnce) {
  const auto checked = validate(LayoutConfig{.alignment = 3});
  ASSERT_TRUE(checked.has_error());
  for (const Rule& rule : rules()) EXPECT_THAT(checked.error().detail, HasSubstr(rule.field));
}

TEST(LayoutConfig, RefusesAProductAboveAFileOffset) {
  // 2^31 blocks of 2^10 layers of 2 * (2^16 * 2^5): 2^63 bytes, one above the most.
  const LayoutConfig config{.num_blocks = std::uint64_t{1} << 31,
                            .num_layers = 1024,
                            .outer_dim = 2,
                            .page_size = 65536,
                            .inner_dim = 32,
                            .dtype_width_bytes = 1};
  const auto checked = validate(config);
  ASSERT_TRUE(checked.has_error());
  EXPECT_EQ(checked.error().code, ErrorCode::impossible_shape);
  EXPECT_THAT(checked.error().detail, HasSubstr("9223372036854775807"));
  for (const Rule& rule : rules()) EXPECT_THAT(checked.error().detail, HasSubstr(rule.field));
}

TEST(LayoutConfig, AcceptsAProductJustBelowAFileOffset) {
  const LayoutConfig config{.num_blocks = (std::uint64_t{1} << 31) - 1,
                            .num_layers = 1024,
                            .outer_dim = 2,
                            .page_size = 65536,
                            .inner_dim = 32,
                            .dtype_width_bytes = 1};
  EXPECT_TRUE(validate(config).has_value());
}

TEST(LayoutConfig, RefusesABlockOfTooManyPieces) {
  LayoutConfig config = kGood;
  config.num_layers = 128;
  config.outer_dim = 1024;
  EXPECT_TRUE(validate(config).has_value());
  config.num_layers = 129;
  const auto checked = validate(config);
  EXPECT_EQ(checked.error().code, ErrorCode::impossible_shape);
  EXPECT_THAT(checked.error().detail, HasSubstr("num_layers 129 * outer_dim 1024"));
}

TEST(LayoutConfig, CountsPaddingInTheProduct) {
  // 2^32 - 1 blocks * 2^10 layers * 2 pieces of one byte are 2^43 bytes; padded to 2^21, 2^64.
  LayoutConfig config{.num_blocks = 4294967295,
                      .num_layers = 1024,
                      .outer_dim = 2,
                      .page_size = 1,
                      .inner_dim = 1,
                      .dtype_width_bytes = 1,
                      .alignment = 1};
  EXPECT_TRUE(validate(config).has_value());
  config.alignment = 2097152;
  EXPECT_EQ(validate(config).error().code, ErrorCode::impossible_shape);
}

TEST(LayoutConfig, RefusesAProductThatWrapsAroundToASmallNumber) {
  // 2^32 * 2^10 * 2 * 2^16 * 2^24 * 2^4 would be 2^87.
  const LayoutConfig config{.num_blocks = 4294967295,
                            .num_layers = 1024,
                            .outer_dim = 2,
                            .page_size = 65536,
                            .inner_dim = 16777216,
                            .dtype_width_bytes = 16};
  EXPECT_EQ(validate(config).error().code, ErrorCode::impossible_shape);
}

TEST(LayoutConfig, CountsTheBytesOfPiecesAndBlocks) {
  EXPECT_EQ(piece_bytes(kGood), 32768u);
  EXPECT_EQ(block_bytes(kGood), 2097152u);
}

TEST(LayoutConfig, ComparesShapesByWhatABlockHolds) {
  LayoutConfig other = kGood;
  other.num_blocks = 1;
  other.alignment = 1;
  EXPECT_TRUE(same_shape(kGood, other));
  for (const auto member :
       {&LayoutConfig::num_layers, &LayoutConfig::outer_dim, &LayoutConfig::page_size,
        &LayoutConfig::inner_dim, &LayoutConfig::dtype_width_bytes}) {
    LayoutConfig changed = kGood;
    changed.*member = 1;
    EXPECT_FALSE(same_shape(kGood, changed));
  }
}

}  // namespace
}  // namespace cairn
