// The durations of requests by node, for a limited number of nodes.
#include "transport/store/node_durations.hpp"

#include <gmock/gmock.h>

#include <numeric>

namespace cairn::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::minutes;
using ::testing::ElementsAre;

constexpr std::size_t kRead = static_cast<std::size_t>(StoreOperation::read);

struct Nodes {
  void ask(const std::string& node, microseconds took = microseconds(100),
           StoreOperation operation = StoreOperation::read) {
    durations.record({.node = node, .operation = operation, .begun = now - took, .ended = now});
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& one : durations.snapshot()) all.push_back(one.node);
    return all;
  }
  static std::uint64_t count(const NodeHistogram::Snapshot& of) {
    return std::accumulate(of.counts.begin(), of.counts.end(), std::uint64_t{0});
  }

  NodeDurations durations;
  NodeDurations::Clock::time_point now = NodeDurations::Clock::time_point(std::chrono::hours(1));
};

TEST(NodeDurations, CountsByNodeAndOperation) {
  Nodes nodes;
  nodes.ask("a:1", microseconds(300));
  nodes.ask("a:1", microseconds(60), StoreOperation::probe);
  nodes.ask("b:1", microseconds(2'000'000));
  EXPECT_THAT(nodes.names(), ElementsAre("a:1", "b:1"));
  const auto all = nodes.durations.snapshot();
  EXPECT_THAT(all[0].operations[kRead].counts, ElementsAre(0, 1, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(all[0].operations[static_cast<std::size_t>(StoreOperation::probe)].counts,
              ElementsAre(1, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(all[1].operations[kRead].counts, ElementsAre(0, 0, 0, 0, 0, 0, 0, 1));
  EXPECT_EQ(all[1].operations[kRead].sum, 2'000'000U);
}

TEST(NodeDurations, CountsNodesBeyondTheLimitTogether) {
  Nodes nodes;
  for (std::size_t i = 0; i < NodeDurations::kMaxNodes + 3; ++i) {
    nodes.ask("n" + std::to_string(i));
  }
  nodes.ask("n0");
  const auto all = nodes.durations.snapshot();
  ASSERT_EQ(all.size(), NodeDurations::kMaxNodes + 1);
  EXPECT_EQ(all.front().node, "n0");
  EXPECT_EQ(Nodes::count(all.front().operations[kRead]), 2U);
  EXPECT_EQ(all.back().node, "other");
  EXPECT_EQ(Nodes::count(all.back().operations[kRead]), 3U);
}

TEST(NodeDurations, AnIdleNodeGivesItsPlaceToAnother) {
  Nodes nodes;
  nodes.ask("old");
  nodes.now += NodeDurations::kIdle - minutes(1);
  for (std::size_t i = 1; i < NodeDurations::kMaxNodes; ++i) nodes.ask("n" + std::to_string(i));
  nodes.ask("early");
  nodes.now += minutes(1);
  nodes.ask("late");
  const auto names = nodes.names();
  EXPECT_EQ(names.size(), NodeDurations::kMaxNodes + 1);
  EXPECT_THAT(names, ::testing::Contains("late"));
  EXPECT_THAT(names, ::testing::Not(::testing::Contains("old")));
  EXPECT_THAT(names, ::testing::Not(::testing::Contains("early")));
}

TEST(NodeDurations, DoesNotReportAForgottenNode) {
  Nodes nodes;
  nodes.ask("a:1");
  nodes.ask("b:1");
  nodes.durations.forget("a:1");
  EXPECT_THAT(nodes.names(), ElementsAre("b:1"));
}

}  // namespace
}  // namespace cairn::testing
