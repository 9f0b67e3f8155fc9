#include "replay/tally.hpp"

#include <gtest/gtest.h>

#include "client/metrics_text.hpp"
#include "replay/report.hpp"

namespace cairn::replay {
namespace {

TEST(PercentilesTest, AreTheSmallestSamplesThatCoverTheShare) {
  std::vector<float> samples;
  for (int i = 1000; i >= 1; --i) samples.push_back(static_cast<float>(i));
  const Percentiles found = percentiles_of(samples);
  EXPECT_EQ(found.count, 1000U);
  EXPECT_EQ(found.p50_us, 500);
  EXPECT_EQ(found.p90_us, 900);
  EXPECT_EQ(found.p99_us, 990);
  EXPECT_EQ(found.max_us, 1000);
}

TEST(PercentilesTest, OneSampleIsEveryPercentile) {
  std::vector<float> samples = {7};
  const Percentiles found = percentiles_of(samples);
  EXPECT_EQ(found.p50_us, 7);
  EXPECT_EQ(found.p99_us, 7);
  EXPECT_EQ(found.max_us, 7);
}

TEST(PercentilesTest, AreZeroWithoutSamples) {
  std::vector<float> samples;
  EXPECT_EQ(percentiles_of(samples).count, 0U);
  EXPECT_EQ(percentiles_of(samples).max_us, 0);
}

TEST(TallyTest, AddsUp) {
  Tally one, two;
  one.requests = 2;
  one.hits = {1, 2, 3};
  one.errors["read 404 unknown_key"] = 1;
  one.late_ms = 9;
  one.add_latency(Step::match, std::chrono::microseconds(10));
  one.actions["pin"]["accepted"] = 1;
  one.add_engine_time({.real_us = 3, .virtual_us = 40});
  two.actions["pin"] = {{"accepted", 2}, {"clipped", 5}};
  two.add_engine_time({.real_us = 8, .virtual_us = 20});
  two.requests = 3;
  two.hits = {10, 20, 30};
  two.errors["read 404 unknown_key"] = 4;
  two.errors["commit timeout"] = 1;
  two.late_ms = 5;
  two.add_latency(Step::match, std::chrono::microseconds(30));
  one.add(std::move(two));
  EXPECT_EQ(one.requests, 5U);
  EXPECT_EQ(one.hits_total(), 66U);
  EXPECT_EQ(one.errors_total(), 6U);
  EXPECT_EQ(one.errors["read 404 unknown_key"], 5U);
  EXPECT_EQ(one.late_ms, 9U);
  EXPECT_EQ(one.latency(Step::match).count, 2U);
  EXPECT_EQ(one.latency(Step::match).max_us, 30);
  EXPECT_EQ(one.latency(Step::read).count, 0U);
  EXPECT_EQ(one.actions.at("pin").at("accepted"), 3U);
  EXPECT_EQ(one.actions.at("pin").at("clipped"), 5U);
  EXPECT_EQ(one.engine_time(Tally::EnginePart::real).max_us, 8);
  EXPECT_EQ(one.engine_time(Tally::EnginePart::simulated).max_us, 40);
  // Percentiles of sums, not sums of percentiles.
  EXPECT_EQ(one.engine_time(Tally::EnginePart::both).p50_us, 28);
  EXPECT_EQ(one.engine_time(Tally::EnginePart::both).max_us, 43);
}

Outcome fine() {
  Outcome outcome;
  outcome.target.own = true;
  outcome.tally.blocks_asked = 10;
  outcome.tally.hits = {1, 2, 3};
  outcome.tally.misses = 4;
  outcome.server = MatchCounts{{1, 2, 3}, 4};
  return outcome;
}

TEST(FaultsTest, AreEmptyIfAllIsWell) { EXPECT_TRUE(faults_of(fine()).empty()); }

TEST(FaultsTest, IncludeEachFailure) {
  Outcome outcome = fine();
  outcome.tally.wrong_bytes = 1;
  EXPECT_EQ(faults_of(outcome).size(), 1U);
  outcome.tally.leased_missing = 1;
  EXPECT_EQ(faults_of(outcome).size(), 2U);
  outcome.tally.errors["match timeout"] = 1;
  EXPECT_EQ(faults_of(outcome).size(), 3U);
  outcome.broken_off = "because";
  EXPECT_EQ(faults_of(outcome).size(), 4U);
}

TEST(FaultsTest, IncludeAServerThatCountsAnotherTier) {
  Outcome outcome = fine();
  outcome.server->hits = {2, 1, 3};  // the same sum
  EXPECT_EQ(faults_of(outcome).size(), 1U);
  outcome.target.own = false;  // others may have matched there too
  EXPECT_TRUE(faults_of(outcome).empty());
}

TEST(FaultsTest, IncludeCountsThatDoNotAddUp) {
  Outcome outcome = fine();
  outcome.tally.blocks_asked = 11;
  EXPECT_EQ(faults_of(outcome).size(), 1U);
}

TEST(FaultsTest, DoNotCompareCountsWithoutAServer) {
  Outcome outcome = fine();
  outcome.server.reset();
  outcome.broken_off = "the server does not answer any more";
  EXPECT_EQ(faults_of(outcome).size(), 1U);
}

TEST(FaultsTest, IgnoreBlocksThatFoundNoRoom) {
  Outcome outcome = fine();
  outcome.tally.not_stored = 4;
  EXPECT_TRUE(faults_of(outcome).empty());
}

TEST(MetricsTest, ReadsOnlySamples) {
  const auto metrics = client::Metrics::parse(
      "# HELP a_total What it is.\n# TYPE a_total counter\na_total 12\n"
      "b{x=\"with } and blank\",y=\"2\"} 1.5 1700000000\n\nbroken\nc{x=\"1\"} word\nd 3e2");
  EXPECT_EQ(metrics.value("a_total"), 12);
  EXPECT_EQ(metrics.value("b{x=\"with } and blank\",y=\"2\"}"), 1.5);
  EXPECT_EQ(metrics.value("d"), 300);
  EXPECT_EQ(metrics.samples().size(), 3U);
  EXPECT_FALSE(metrics.contains("e"));
  EXPECT_EQ(metrics.value("e"), 0);
}

}  // namespace
}  // namespace cairn::replay
