#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/hex.hpp"
#include "client/cache_client.hpp"
#include "replay/driver.hpp"
#include "replay/replay_blocks.hpp"
#include "replay/report.hpp"
#include "tests/replay/fake_cairn.hpp"

// The whole replayer against a fake server whose faults it must find.
namespace cairn::replay {
namespace {

using replay_test::FakeCairn;
using replay_test::Faults;
using replay_test::ScriptedServer;

class ListedWorkload final : public Workload {
 public:
  explicit ListedWorkload(std::vector<PromptRequest> requests) : requests_(std::move(requests)) {}
  Result<std::optional<PromptRequest>> next() override {
    if (at_ == requests_.size()) return std::optional<PromptRequest>();
    return std::optional(requests_[at_++]);
  }
  double fraction_done() const override { return 0; }
  std::string name() const override { return "listed"; }

 private:
  std::vector<PromptRequest> requests_;
  std::size_t at_ = 0;
};

PromptRequest prompt(std::uint64_t first, std::uint64_t count) {
  PromptRequest request;
  for (std::uint64_t i = 0; i < count; ++i) request.hash_ids.push_back(first + i);
  return request;
}

class ReplayTest : public testing::Test {
 protected:
  Outcome run(FakeCairn& fake, std::vector<PromptRequest> requests) {
    ScriptedServer server(
        [&fake](const replay_test::ReceivedRequest& request) { return fake.handle(request); });
    options_.server = server.endpoint();
    options_.shape.device_blocks = options_.shape.disk_blocks = 0;
    ListedWorkload workload(std::move(requests));
    auto outcome = replay(options_, workload, console_, stop_.get_token());
    if (!outcome) {
      ADD_FAILURE() << outcome.error().code << ": " << outcome.error().detail;
      return {};
    }
    EXPECT_EQ(fake.leases(), 0U) << "every lease is released";
    return std::move(*outcome);
  }

  ReplayOptions options_ = [] {
    ReplayOptions options;
    options.connections = 1;
    return options;
  }();
  std::stop_source stop_;
  Console console_{stderr, Console::Mode::silent};
};

TEST_F(ReplayTest, StoresMissesAndReadsHits) {
  FakeCairn fake;
  const Outcome outcome = run(fake, {prompt(0, 5), prompt(0, 8)});
  EXPECT_THAT(faults_of(outcome), testing::IsEmpty());
  EXPECT_EQ(outcome.tally.requests, 2U);
  EXPECT_EQ(outcome.tally.blocks_asked, 13U);
  EXPECT_EQ(outcome.tally.hits_total(), 5U);
  EXPECT_EQ(outcome.tally.misses, 8U);
  EXPECT_EQ(outcome.tally.stored, 8U);
  EXPECT_EQ(outcome.tally.bytes_read, 5U * FakeCairn::kBlockBytes);
  EXPECT_EQ(outcome.tally.bytes_written, 8U * FakeCairn::kBlockBytes);
  ASSERT_TRUE(outcome.server);
  EXPECT_EQ(outcome.server->total(), 13U);
  EXPECT_FALSE(fake.cache_exists()) << "its own cache is removed";
}

// Both store modes send each block's parent, also across the runs of a prefix.
class ReplayStoreTest : public ReplayTest, public testing::WithParamInterface<StoreMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, ReplayStoreTest,
                         testing::Values(StoreMode::slots, StoreMode::write));

TEST_P(ReplayStoreTest, SendsEachBlocksParent) {
  FakeCairn fake;
  options_.store_mode = GetParam();
  const Outcome outcome = run(fake, {prompt(0, 2), prompt(0, 4)});
  EXPECT_THAT(faults_of(outcome), testing::IsEmpty());
  const KeyMaker keys("listed");
  const auto parents = fake.parents();
  ASSERT_EQ(parents.size(), 4U);
  EXPECT_EQ(parents.at(to_hex(keys.key_of(0))), "");
  for (std::uint64_t id = 1; id < 4; ++id) {
    EXPECT_EQ(parents.at(to_hex(keys.key_of(id))), to_hex(keys.key_of(id - 1)));
  }
}

TEST_P(ReplayStoreTest, SplitsARequestLongerThanTheTier) {
  FakeCairn fake({.capacity_blocks = 10});
  options_.store_mode = GetParam();
  const Outcome outcome = run(fake, {prompt(0, 35)});
  EXPECT_THAT(faults_of(outcome), testing::IsEmpty());
  EXPECT_EQ(outcome.tally.stored, 35U);
  EXPECT_EQ(fake.committed(), 10U);
}

TEST_F(ReplayTest, CountsAnAlreadyCommittedKeyAsADuplicate) {
  FakeCairn fake;
  PromptRequest twice = prompt(0, 3);
  twice.hash_ids.push_back(0);  // missing at the match, present at its commit
  const Outcome outcome = run(fake, {twice});
  EXPECT_THAT(faults_of(outcome), testing::IsEmpty());
  EXPECT_EQ(outcome.tally.stored, 3U);
  EXPECT_EQ(outcome.tally.duplicates, 1U);
}

class ReplayReadTest : public ReplayTest, public testing::WithParamInterface<ReadMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, ReplayReadTest, testing::Values(ReadMode::read, ReadMode::keys));

TEST_P(ReplayReadTest, FindsAFlippedBit) {
  FakeCairn fake({.flip_a_bit = true});
  options_.read_mode = GetParam();
  const Outcome outcome = run(fake, {prompt(0, 4), prompt(0, 4)});
  EXPECT_EQ(outcome.tally.wrong_bytes, 4U);
  EXPECT_EQ(outcome.tally.wrong_blocks, 4U);
  EXPECT_THAT(faults_of(outcome), testing::SizeIs(1));
}

TEST_P(ReplayReadTest, CountsAMissingLeasedBlockAsAFailure) {
  FakeCairn fake({.lose_leased = true});
  options_.read_mode = GetParam();
  const Outcome outcome = run(fake, {prompt(0, 1), prompt(0, 1)});
  EXPECT_EQ(outcome.tally.wrong_bytes, 0U);
  EXPECT_EQ(outcome.tally.leased_missing, 1U);
  EXPECT_THAT(faults_of(outcome), testing::Not(testing::IsEmpty()));
}

TEST_F(ReplayTest, FindsTwoBlocksSwapped) {
  FakeCairn fake({.swap_blocks = true});
  const Outcome outcome = run(fake, {prompt(0, 4), prompt(0, 4)});
  EXPECT_EQ(outcome.tally.wrong_blocks, 2U);
  EXPECT_THAT(console_.messages(), testing::Contains(testing::HasSubstr("another key's block")));
}

TEST_F(ReplayTest, FindsAServerThatMiscountsMatches) {
  FakeCairn fake({.extra_misses = 1});
  const Outcome outcome = run(fake, {prompt(0, 4)});
  EXPECT_THAT(faults_of(outcome), testing::ElementsAre(testing::HasSubstr("counted other")));
}

TEST_F(ReplayTest, KeepsToTheTimesOfTheTrace) {
  FakeCairn fake;
  options_.speed = 2;
  PromptRequest late = prompt(0, 1);
  late.timestamp_ms = 60;
  const Outcome outcome = run(fake, {prompt(0, 1), late});
  EXPECT_EQ(outcome.tally.requests, 2U);
  EXPECT_GE(outcome.duration, std::chrono::milliseconds(30));
}

TEST_F(ReplayTest, StopsAtTheLimit) {
  FakeCairn fake;
  options_.limit = 2;
  const Outcome outcome = run(fake, {prompt(0, 1), prompt(1, 1), prompt(2, 1)});
  EXPECT_EQ(outcome.tally.requests, 2U);
}

TEST_F(ReplayTest, SharesTheRequestsAmongItsConnections) {
  FakeCairn fake;
  options_.connections = 4;
  std::vector<PromptRequest> requests;
  for (std::uint64_t i = 0; i < 200; ++i) requests.push_back(prompt(i % 20 * 100, 1 + i % 7));
  const Outcome outcome = run(fake, requests);
  EXPECT_THAT(faults_of(outcome), testing::IsEmpty());
  EXPECT_EQ(outcome.tally.requests, 200U);
  EXPECT_EQ(outcome.tally.stored + outcome.tally.duplicates, outcome.tally.misses);
}

TEST_F(ReplayTest, KeepsItsCacheOnRequest) {
  FakeCairn fake;
  options_.keep = true;
  run(fake, {prompt(0, 1)});
  EXPECT_TRUE(fake.cache_exists());
}

TEST_F(ReplayTest, StopsOnRequest) {
  FakeCairn fake;
  stop_.request_stop();
  const Outcome outcome = run(fake, {prompt(0, 1)});
  EXPECT_EQ(outcome.tally.requests, 0U);
  EXPECT_EQ(outcome.broken_off, "interrupted");
  EXPECT_FALSE(fake.cache_exists());
}

TEST_F(ReplayTest, PrintsOneJsonObject) {
  FakeCairn fake;
  Outcome outcome = run(fake, {prompt(0, 5), prompt(0, 8)});
  std::ostringstream out;
  print_json(out, outcome, {});
  const auto json = nlohmann::json::parse(out.str());
  EXPECT_EQ(json.at("passed"), true);
  EXPECT_EQ(json.at("wrong_bytes"), 0);
  EXPECT_EQ(json.at("match").at("pinned"), 5);
  EXPECT_EQ(json.at("match").at("miss"), 8);
  EXPECT_EQ(json.at("server_match"), json.at("match"));
  EXPECT_EQ(json.at("latency_us").at("match").at("count"), 2);
}

TEST_F(ReplayTest, ReportsWhyItCannotBegin) {
  ScriptedServer server([](const replay_test::ReceivedRequest&) {
    return replay_test::answer(422, R"({"code": "impossible_shape", "detail": "too large"})",
                               "application/problem+json");
  });
  options_.server = server.endpoint();
  ListedWorkload workload({});
  const auto outcome = replay(options_, workload, console_, stop_.get_token());
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().status, 422U);
  EXPECT_EQ(outcome.error().code, "impossible_shape");
  EXPECT_EQ(outcome.error().detail, "too large");
}

}  // namespace
}  // namespace cairn::replay
