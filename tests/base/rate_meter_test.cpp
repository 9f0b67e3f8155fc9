#include "base/rate_meter.hpp"

#include <gtest/gtest.h>

#include "tests/fakes/manual_clock.hpp"

namespace cairn {
namespace {

using std::chrono::milliseconds;

class RateMeterTest : public ::testing::Test {
 protected:
  void work(std::uint64_t bytes, milliseconds time) {
    meter_.begin();
    clock_.advance(time);
    meter_.end(bytes);
  }

  static constexpr std::uint64_t kMiB = 1u << 20;
  fakes::ManualClock clock_;
  RateMeter meter_{clock_};
};

TEST_F(RateMeterTest, KnowsNothingOfAFewBytes) {
  work(kMiB, milliseconds(1));
  EXPECT_EQ(meter_.bytes_per_s(), 0);
}

TEST_F(RateMeterTest, IdleTimeDoesNotCount) {
  for (int i = 0; i < 20; ++i) {
    work(kMiB, milliseconds(1));
    clock_.advance(milliseconds(100));
  }
  EXPECT_DOUBLE_EQ(meter_.bytes_per_s(), 1000.0 * kMiB);
}

TEST_F(RateMeterTest, TimeInWhichSeveralWorkCountsOnce) {
  for (int i = 0; i < 10; ++i) {
    meter_.begin();
    meter_.begin();
    clock_.advance(milliseconds(2));
    meter_.end(2 * kMiB);
    meter_.end(2 * kMiB);
  }
  EXPECT_DOUBLE_EQ(meter_.bytes_per_s(), 2000.0 * kMiB);
}

// Found with a bucket, whose values of one request end together.
TEST_F(RateMeterTest, ABurstAtTheEndIsNoSpeed) {
  for (int burst = 0; burst < 10; ++burst) {
    for (int i = 0; i < 100; ++i) meter_.begin();
    clock_.advance(milliseconds(100));
    for (int i = 0; i < 100; ++i) meter_.end(kMiB);
  }
  EXPECT_NEAR(meter_.bytes_per_s(), 1000.0 * kMiB, 200.0 * kMiB);
}

TEST_F(RateMeterTest, FailuresTakeTimeAndBringNothing) {
  for (int i = 0; i < 20; ++i) {
    work(kMiB, milliseconds(1));
    work(0, milliseconds(1));
  }
  EXPECT_DOUBLE_EQ(meter_.bytes_per_s(), 500.0 * kMiB);
}

TEST_F(RateMeterTest, FollowsAChange) {
  work(1000 * kMiB, milliseconds(1000));
  for (int i = 0; i < 10; ++i) work(500 * kMiB, milliseconds(5000));
  EXPECT_NEAR(meter_.bytes_per_s(), 100.0 * kMiB, kMiB);
}

}  // namespace
}  // namespace cairn
