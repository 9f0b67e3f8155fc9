#include "base/quantity.hpp"

#include <gtest/gtest.h>

namespace cairn {
namespace {

struct Case {
  const char* text;
  std::optional<std::uint64_t> value;
};
void PrintTo(const Case& one, std::ostream* out) { *out << '"' << one.text << '"'; }

class ByteSizes : public testing::TestWithParam<Case> {};
TEST_P(ByteSizes, Parse) { EXPECT_EQ(parse_bytes(GetParam().text), GetParam().value); }
INSTANTIATE_TEST_SUITE_P(
    Quantity, ByteSizes,
    testing::Values(Case{"16GiB", std::uint64_t{16} << 30}, Case{"512MiB", 512 << 20},
                    Case{"1KiB", 1024}, Case{"2TiB", std::uint64_t{2} << 40}, Case{"7B", 7},
                    Case{"16Gi", std::uint64_t{16} << 30}, Case{"3MB", 3'000'000},
                    Case{"1.5GiB", std::uint64_t{3} << 29}, Case{"0B", 0}, Case{"0.3B", {}},
                    Case{"1.0000001KiB", {}}, Case{"8192TiB", std::uint64_t{1} << 53},
                    Case{"8193TiB", {}}, Case{"16", {}}, Case{"", {}}, Case{"GiB", {}},
                    Case{"-1GiB", {}}, Case{"16 GiB", {}}, Case{" 16GiB", {}}, Case{"16GiB ", {}},
                    Case{"16gib", {}}, Case{"16GiBs", {}}, Case{"1e3KiB", {}}, Case{"0x10KiB", {}},
                    Case{"infB", {}}, Case{"nanB", {}}, Case{"10s", {}}));

class Durations : public testing::TestWithParam<Case> {};
TEST_P(Durations, Parse) { EXPECT_EQ(parse_duration_ms(GetParam().text), GetParam().value); }
INSTANTIATE_TEST_SUITE_P(Quantity, Durations,
                         testing::Values(Case{"10s", 10'000}, Case{"5m", 300'000},
                                         Case{"1.5h", 5'400'000}, Case{"250ms", 250},
                                         Case{"1d", 86'400'000}, Case{"0.5ms", {}}, Case{"10", {}},
                                         Case{"5M", {}}, Case{"1m30s", {}}, Case{"10KiB", {}}));

TEST(Quantity, TheNameSaysWhatItIs) {
  EXPECT_EQ(parse_quantity("max_body_bytes", "1KiB"), 1024u);
  EXPECT_EQ(parse_quantity("max-body-bytes", "1KiB"), 1024u);
  EXPECT_EQ(parse_quantity("size_bytes", "10s"), std::nullopt);
  EXPECT_EQ(parse_quantity("scrub_bytes_per_s", "1KiB"), 1024u);
  EXPECT_EQ(parse_quantity("scrub_bytes_per_s", "1KiB/s"), 1024u);
  EXPECT_EQ(parse_quantity("size_bytes", "1KiB/s"), std::nullopt);
  EXPECT_EQ(parse_quantity("timeout_ms", "2s"), 2000u);
  EXPECT_EQ(parse_quantity("lease-ms", "2s"), 2000u);
  EXPECT_EQ(parse_quantity("programs", "2s"), std::nullopt);
  EXPECT_EQ(parse_quantity("num_blocks", "1KiB"), std::nullopt);
}

TEST(Quantity, EachExampleParses) {
  for (const char* name : {"size_bytes", "bytes_per_s", "timeout_ms"}) {
    EXPECT_NE(parse_quantity(name, quantity_example(name)), std::nullopt) << name;
  }
  EXPECT_EQ(quantity_example("num_blocks"), "");
}

}  // namespace
}  // namespace cairn
