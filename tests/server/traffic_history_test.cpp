#include "server/routes/traffic_history.hpp"

#include <gmock/gmock.h>

#include "tests/fakes/manual_clock.hpp"

namespace cairn {
namespace {

TrafficHistory::CacheCounts cache(std::uint64_t id, std::uint64_t asked, std::uint64_t found) {
  TrafficHistory::CacheCounts counts{.id = id, .asked_blocks = asked, .found_blocks = found};
  counts.moved[0][1] = 10 * asked;
  return counts;
}

class TrafficHistoryTest : public ::testing::Test {
 protected:
  void add(const TrafficHistory::Counts& now) {
    clock_.advance(TrafficHistory::kPeriod);
    history_.add(now);
  }
  std::vector<TrafficHistory::Sample> all() const { return history_.after(0); }

  fakes::ManualClock clock_;
  TrafficHistory history_{clock_};
};

TEST_F(TrafficHistoryTest, SampleCountsSinceTheOneBefore) {
  EXPECT_FALSE(history_.is_due());
  clock_.advance(TrafficHistory::kPeriod);
  EXPECT_TRUE(history_.is_due());
  history_.add(
      {.requests = 5, .received_bytes = 100, .sent_bytes = 200, .caches = {cache(1, 8, 2)}});
  EXPECT_FALSE(history_.is_due());
  add({.requests = 7, .received_bytes = 101, .sent_bytes = 202, .caches = {cache(1, 18, 9)}});
  const std::vector<TrafficHistory::Sample> samples = all();
  ASSERT_EQ(samples.size(), 2U);
  const TrafficHistory::Sample& first = samples[0];
  const TrafficHistory::Sample& second = samples[1];
  EXPECT_EQ(first.requests, 5U);
  EXPECT_EQ(second.requests, 2U);
  EXPECT_EQ(second.received_bytes, 1U);
  EXPECT_EQ(second.sent_bytes, 2U);
  EXPECT_EQ(second.asked_blocks, 10U);
  EXPECT_EQ(second.found_blocks, 7U);
  EXPECT_EQ(second.moved[0][1], 100U);
  EXPECT_EQ(second.number, first.number + 1);
  EXPECT_EQ(second.ended_unix_ms - first.ended_unix_ms, 5'000);
  EXPECT_EQ(second.duration_ms, 5'000U);
}

TEST_F(TrafficHistoryTest, DeletedCacheSubtractsNothingAndNewCacheAdds) {
  add({.caches = {cache(1, 100, 50), cache(2, 30, 30)}});
  add({.caches = {cache(1, 101, 51)}});
  add({.caches = {cache(1, 101, 51), cache(3, 4, 1)}});
  ASSERT_EQ(all().size(), 3U);
  EXPECT_EQ(all()[1].asked_blocks, 1U);
  EXPECT_EQ(all()[2].asked_blocks, 4U);
  EXPECT_EQ(all()[2].found_blocks, 1U);
}

TEST_F(TrafficHistoryTest, KeepsAnHourAndReturnsNewSamples) {
  for (std::size_t i = 0; i < TrafficHistory::kMostSamples + 3; ++i) add({.requests = i});
  const auto kept = all();
  ASSERT_EQ(kept.size(), TrafficHistory::kMostSamples);
  EXPECT_EQ(kept.back().ended_unix_ms - kept.front().ended_unix_ms + 5'000, 3'600'000);
  EXPECT_EQ(history_.after(kept.back().number - 2).size(), 2U);
  EXPECT_TRUE(history_.after(kept.back().number).empty());
}

// A page that stays open over the restart continues.
TEST_F(TrafficHistoryTest, NumbersRiseOverARestart) {
  for (int i = 0; i < 10; ++i) add({});
  const std::uint64_t last = all().back().number;
  TrafficHistory next(clock_);
  clock_.advance(TrafficHistory::kPeriod);
  next.add({});
  EXPECT_EQ(next.after(last).size(), 1U);
}

}  // namespace
}  // namespace cairn
