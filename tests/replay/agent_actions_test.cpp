#include "replay/agent_actions.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/hex.hpp"
#include "replay/action_sender.hpp"
#include "replay/frontend.hpp"
#include "tests/replay/scripted_server.hpp"

namespace cairn::replay {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using Ids = std::vector<std::uint64_t>;
using Requests = std::vector<PromptRequest>;
using enum AgentAction::Type;
using AtPause = ActionOptions::AtPause;

struct Turn {
  std::uint64_t at_ms = 0;
  std::uint64_t conversation = 0;
};
// One block that all conversations share, and one more of its own at each turn.
Requests turns(const std::vector<Turn>& list) {
  Requests requests;
  std::map<std::uint64_t, Ids> blocks;
  for (const Turn& turn : list) {
    Ids& own = blocks.try_emplace(turn.conversation, Ids{0}).first->second;
    own.push_back(100 * turn.conversation + own.size());
    requests.push_back(
        {.timestamp_ms = turn.at_ms, .hash_ids = own, .conversation = turn.conversation});
  }
  return requests;
}

Requests planned(Requests requests, const ActionOptions& options) {
  add_actions(requests, options);
  return requests;
}

TEST(AgentActions, APinBeginsAtThePauseAndEndsWithTheNextTurn) {
  const Requests requests =
      planned(turns({{0, 1}, {50, 2}, {20'000, 1}}), {.at_pause = AtPause::pin, .paused = 1});
  ASSERT_THAT(requests[0].after, SizeIs(1));
  EXPECT_EQ(requests[0].after[0].type, pin);
  EXPECT_EQ(requests[0].after[0].hash_ids, nullptr) << "those of its request";
  EXPECT_GT(requests[0].after[0].length_ms, 20'000U);
  EXPECT_THAT(requests[1].after, IsEmpty()) << "it does not resume";
  ASSERT_THAT(requests[2].after, SizeIs(1));
  EXPECT_EQ(requests[2].after[0].type, unpin);
  EXPECT_EQ(requests[2].after[0].pin, requests[0].after[0].pin);
}

TEST(AgentActions, APrefetchComesBeforeTheNextTurn) {
  const Requests requests =
      planned(turns({{0, 1}, {14'000, 2}, {15'500, 3}, {20'000, 1}, {22'000, 1}}), {.prefetch = 1});
  EXPECT_THAT(requests[1].before, IsEmpty());
  // 5 s before the turn, or half of a pause that is shorter than twice that.
  ASSERT_THAT(requests[2].before, SizeIs(1));
  const AgentAction& first = requests[2].before[0];
  EXPECT_EQ(first.type, prefetch);
  EXPECT_EQ(first.timestamp_ms, 15'000U);
  EXPECT_EQ(first.length_ms, 5'000U);
  EXPECT_EQ(*first.hash_ids, (Ids{0, 101}));
  ASSERT_THAT(requests[4].before, SizeIs(1));
  EXPECT_EQ(requests[4].before[0].timestamp_ms, 21'000U);
  EXPECT_EQ(*requests[4].before[0].hash_ids, (Ids{0, 101, 102}));
}

TEST(AgentActions, ADemotionLeavesBlocksOfOthers) {
  const Requests requests =
      planned(turns({{0, 1}, {50, 2}, {20'000, 1}}), {.at_pause = AtPause::demote, .paused = 1});
  ASSERT_THAT(requests[0].after, SizeIs(1));
  EXPECT_EQ(requests[0].after[0].type, demote);
  EXPECT_EQ(*requests[0].after[0].hash_ids, (Ids{101}));
}

TEST(AgentActions, AFittingActionDependsOnTheLengthOfThePause) {
  const Requests requests = planned(turns({{0, 1}, {300'000, 1}, {600'001, 1}}),
                                    {.at_pause = AtPause::fitting, .paused = 1});
  EXPECT_EQ(requests[0].after.at(0).type, pin);
  EXPECT_EQ(requests[1].after.at(0).type, unpin);
  EXPECT_EQ(requests[1].after.at(1).type, demote);
}

TEST(AgentActions, AHintTellsTheLengthOfThePause) {
  const Requests requests =
      planned(turns({{0, 1}, {7'000, 1}}), {.at_pause = AtPause::within, .paused = 1});
  EXPECT_EQ(requests[0].hint, (ReuseHint{.kind = ReuseHint::Kind::within, .within_ms = 7'000}));
  EXPECT_FALSE(requests[1].hint);
}

// Without numbers, a conversation goes on when half of a prompt is requested again.
TEST(AgentActions, FindConversationsByTheirBlocks) {
  Requests requests = turns({{0, 1}, {10, 2}, {20, 1}, {4'000, 1}, {5'000, 2}, {9'000, 1}});
  for (PromptRequest& request : requests) {
    request.conversation = 0;
    request.hash_ids.erase(request.hash_ids.begin());
  }
  add_actions(requests, {.prefetch = 1});
  std::vector<Ids> fetched;
  for (const PromptRequest& request : requests) {
    for (const AgentAction& action : request.before) fetched.push_back(*action.hash_ids);
  }
  EXPECT_THAT(fetched, ElementsAre(Ids{101}, Ids{101, 102}, Ids{201}, Ids{101, 102, 103}));
}

// Many conversations of two turns each, 10 s apart.
Requests many() {
  std::vector<Turn> list;
  for (std::uint64_t i = 0; i < 4'000; ++i) {
    list.push_back({5 * (i % 2'000) + 10'000 * (i / 2'000), i % 2'000 + 1});
  }
  return turns(list);
}

TEST(AgentActions, AreSentInTheirShare) {
  const Requests requests =
      planned(many(), {.at_pause = AtPause::pin, .paused = 0.25, .prefetch = 0.8});
  std::map<AgentAction::Type, int> counts;
  for (const PromptRequest& request : requests) {
    for (const AgentAction& action : request.before) ++counts[action.type];
    for (const AgentAction& action : request.after) ++counts[action.type];
  }
  EXPECT_NEAR(counts[pin], 500, 60);
  EXPECT_EQ(counts[unpin], counts[pin]);
  EXPECT_NEAR(counts[prefetch], 1'600, 60);
}

TEST(AgentActions, NameAnotherConversationOrAWrongTimeIfTheyAreWrong) {
  const auto wrong_of = [](double right) {
    std::map<std::string, int> counts;
    const Requests requests = planned(many(), {.prefetch = 1, .right = right});
    for (const PromptRequest& request : requests) {
      for (const AgentAction& action : request.before) {
        const std::uint64_t whose = action.hash_ids->back() / 100;
        const bool has_next_turn = std::ranges::any_of(requests, [&](const PromptRequest& turn) {
          return turn.conversation == whose &&
                 turn.timestamp_ms == action.timestamp_ms + action.length_ms;
        });
        ++counts[!has_next_turn ? "other" : action.length_ms == 5'000 ? "right" : "early"];
      }
    }
    return counts;
  };
  EXPECT_THAT(wrong_of(1), ElementsAre(testing::Pair("right", 2'000)));
  const auto counts = wrong_of(0.8);
  EXPECT_NEAR(counts.at("right"), 1'600, 60);
  EXPECT_NEAR(counts.at("early"), 200, 50);
  EXPECT_NEAR(counts.at("other"), 200, 50);
}

class ActionSenderTest : public testing::Test {
 protected:
  // Answers each action with the outcome, and a pin.
  replay_test::ScriptedAnswer handle(const replay_test::ReceivedRequest& request) {
    calls_.push_back(request.method + " " + request.target);
    if (request.method == "DELETE")
      return replay_test::answer(200, R"({"pin": "p1", "blocks": 2})");
    bodies_.push_back(nlohmann::json::parse(request.body).at("actions").at(0));
    const nlohmann::json result = {{"outcome", outcome_}, {"blocks", 2}, {"pin", "p1"}};
    return replay_test::answer(200, nlohmann::json{{"results", {result}}}.dump());
  }
  Tally sent(const std::vector<AgentAction>& actions, double speed) {
    replay_test::ScriptedServer server(
        [this](const replay_test::ReceivedRequest& request) { return handle(request); });
    Frontend frontend({.server = server.endpoint(),
                       .http = {},
                       .target = {.name = "c"},
                       .pause = [](std::chrono::milliseconds) {},
                       .report = [](std::string_view) {}},
                      keys_);
    PinBook pins;
    ActionSender sender(frontend, keys_, pins, {.cache = "c", .speed = speed});
    for (const AgentAction& action : actions) sender.send(action, {.hash_ids = {1, 2}});
    return std::move(frontend.tally());
  }

  const KeyMaker keys_{"a workload"};
  std::string outcome_ = "accepted";
  std::vector<std::string> calls_;
  std::vector<nlohmann::json> bodies_;
};

TEST_F(ActionSenderTest, EndsThePinThatItBegan) {
  const Tally tally = sent({{.type = pin, .length_ms = 80'000, .pin = 7},
                            {.type = unpin, .pin = 7},
                            {.type = unpin, .pin = 7}},
                           0);
  EXPECT_THAT(calls_, ElementsAre("POST /v1/caches/c/actions", "DELETE /v1/pins/p1"));
  const nlohmann::json keys = {to_hex(keys_.key_of(1)), to_hex(keys_.key_of(2))};
  EXPECT_EQ(bodies_.at(0).at("target").at("keys"), keys);
  EXPECT_EQ(bodies_.at(0).at("ttl_ms"), 80'000);
  EXPECT_EQ(tally.actions.at("pin").at("accepted"), 1U);
  EXPECT_EQ(tally.actions.at("unpin").at("accepted"), 1U);
  EXPECT_EQ(tally.actions.at("unpin").at("missing"), 1U);
}

// With several connections, the next turn may overtake the pause before it.
TEST_F(ActionSenderTest, EndsAPinWhoseEndCameFirst) {
  const Tally tally =
      sent({{.type = unpin, .pin = 7}, {.type = pin, .length_ms = 80'000, .pin = 7}}, 0);
  EXPECT_THAT(calls_, ElementsAre("POST /v1/caches/c/actions", "DELETE /v1/pins/p1"));
  EXPECT_EQ(tally.actions.at("unpin").at("accepted"), 1U);
}

TEST_F(ActionSenderTest, ShortensTimesWithTheTrace) {
  const auto other = std::make_shared<const Ids>(Ids{9});
  outcome_ = "clipped";
  const Tally tally = sent({{.type = pin, .length_ms = 80'000},
                            {.type = retain, .length_ms = 80'000},
                            {.type = prefetch, .length_ms = 5'000, .hash_ids = other}},
                           20);
  ASSERT_THAT(bodies_, SizeIs(3));
  EXPECT_EQ(bodies_[0].at("ttl_ms"), 4'000);
  EXPECT_EQ(bodies_[1].at("ttl_ms"), 80'000) << "a hint keeps its place among others";
  EXPECT_EQ(bodies_[2].at("deadline_ms"), 250);
  EXPECT_EQ(bodies_[2].at("target").at("keys"), nlohmann::json{to_hex(keys_.key_of(9))});
  EXPECT_EQ(tally.actions.at("prefetch").at("clipped"), 1U);
}

}  // namespace
}  // namespace cairn::replay
