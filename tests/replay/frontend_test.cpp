#include "replay/frontend.hpp"

#include <gmock/gmock.h>

#include "tests/replay/fake_cairn.hpp"

namespace cairn::replay {
namespace {

using replay_test::FakeCairn;
using replay_test::ScriptedServer;
using std::chrono::milliseconds;

// A frontend that records its pauses and does not wait.
class FrontendTest : public testing::TestWithParam<StoreMode> {
 protected:
  Tally run(FakeCairn& fake, const std::vector<std::vector<std::uint64_t>>& prompts) {
    ScriptedServer server(
        [&fake](const replay_test::ReceivedRequest& request) { return fake.handle(request); });
    const KeyMaker keys("a workload");
    Frontend frontend({.server = server.endpoint(),
                       .http = {},
                       .target = {.name = "c",
                                  .block_bytes = FakeCairn::kBlockBytes,
                                  .store_tier = client::Tier::pinned,
                                  .store_tier_blocks = fake.capacity_blocks(),
                                  .own = true},
                       .store_mode = GetParam(),
                       .read_mode = ReadMode::read,
                       .lease_ms = 1000,
                       .pause = [this](milliseconds time) { pauses_.push_back(time); },
                       .report = [this](std::string_view text) { reports_.emplace_back(text); }},
                      keys);
    for (const auto& ids : prompts) EXPECT_TRUE(frontend.run({0, ids}));
    EXPECT_EQ(fake.leases(), 0U);
    return std::move(frontend.tally());
  }

  std::vector<milliseconds> pauses_;
  std::vector<std::string> reports_;
};
INSTANTIATE_TEST_SUITE_P(Modes, FrontendTest, testing::Values(StoreMode::slots, StoreMode::write));

std::vector<std::uint64_t> ids(std::uint64_t count) {
  std::vector<std::uint64_t> list;
  for (std::uint64_t i = 0; i < count; ++i) list.push_back(i);
  return list;
}

TEST_P(FrontendTest, StopsAskingForRoomAfterSomeTries) {
  FakeCairn fake({.capacity_blocks = 10});
  // The second prompt's match holds all ten blocks, so its tail never finds room.
  const Tally tally = run(fake, {ids(10), ids(13)});
  EXPECT_EQ(tally.hits_total(), 10U);
  EXPECT_EQ(tally.stored, 10U);
  EXPECT_EQ(tally.not_stored, 3U);
  EXPECT_EQ(tally.errors_total(), 0U);
  EXPECT_EQ(pauses_.size(), static_cast<std::size_t>(Frontend::kTries) - 1);
}

TEST_P(FrontendTest, RetriesIfTheServerIsBusy) {
  FakeCairn fake({.busy_answers = 2});
  const Tally tally = run(fake, {ids(3)});
  EXPECT_EQ(tally.stored, 3U);
  EXPECT_EQ(tally.retries, 2U);
  // Retry-After is a second, but the client waits at most kMaxPause.
  EXPECT_THAT(pauses_, testing::ElementsAre(Frontend::kMaxPause, Frontend::kMaxPause));
}

TEST_P(FrontendTest, CountsBlocksThatABusyServerRefusedAsNotStored) {
  FakeCairn fake({.busy_answers = 1000});
  const Tally tally = run(fake, {ids(3)});
  EXPECT_EQ(tally.not_stored, 3U);
  EXPECT_EQ(tally.errors_total(), 0U);
  EXPECT_EQ(pauses_.size(), static_cast<std::size_t>(Frontend::kTries) - 1);
}

TEST_P(FrontendTest, MeasuresEachStepItTook) {
  FakeCairn fake;
  Tally tally = run(fake, {ids(3), ids(3)});
  const bool slots = GetParam() == StoreMode::slots;
  EXPECT_EQ(tally.latency(Step::match).count, 2U);
  EXPECT_EQ(tally.latency(Step::read).count, 1U);
  EXPECT_EQ(tally.latency(Step::allocate).count, slots ? 1U : 0U);
  EXPECT_EQ(tally.latency(Step::write).count, slots ? 3U : 1U);
  EXPECT_EQ(tally.latency(Step::commit).count, slots ? 1U : 0U);
}

TEST_P(FrontendTest, ReportsAServerThatDoesNotRespond) {
  client::Endpoint nobody;
  {
    ScriptedServer gone(
        [](const replay_test::ReceivedRequest&) { return replay_test::ScriptedAnswer{}; });
    nobody = gone.endpoint();
  }
  const KeyMaker keys("a workload");
  Frontend frontend({.server = nobody,
                     .http = {},
                     .target = {},
                     .store_mode = GetParam(),
                     .pause = [](milliseconds) {},
                     .report = [this](std::string_view text) { reports_.emplace_back(text); }},
                    keys);
  EXPECT_FALSE(frontend.run({0, {1}}));
  EXPECT_EQ(frontend.tally().requests_failed, 1U);
  EXPECT_EQ(frontend.tally().blocks_asked, 0U);
  EXPECT_THAT(reports_, testing::ElementsAre(testing::StartsWith("match not_connected")));
}

}  // namespace
}  // namespace cairn::replay
