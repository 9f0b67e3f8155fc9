#include "base/nearest.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace cairn {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"threads", "listen", "tier", "tiers",
                                                    "no_wait"};

TEST(DidYouMean, NamesTheOnlyNearName) {
  for (const char* word : {"thread", "treads", "thraeds", "threadss", "thrads", "trheds"}) {
    EXPECT_EQ(did_you_mean(word, kNames), "; did you mean 'threads'?") << word;
  }
  EXPECT_EQ(did_you_mean("no-wait", kNames), "; did you mean 'no_wait'?");
}

TEST(DidYouMean, SaysNothingOfFarOrEquallyNearNames) {
  for (const char* word : {"", "t", "x", "layout", "tiera", "thrd"}) {
    EXPECT_EQ(did_you_mean(word, kNames), "") << word;
  }
  EXPECT_EQ(did_you_mean(std::string(1'000, 't'), kNames), "");
  EXPECT_EQ(did_you_mean("threads", {}), "");
}

}  // namespace
}  // namespace cairn
