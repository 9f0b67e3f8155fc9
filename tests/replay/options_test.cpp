#include "replay/options.hpp"

#include <gmock/gmock.h>

#include <sstream>

namespace cairn::replay {
namespace {

Result<std::optional<ReplayOptions>> parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "cairn-replay");
  std::ostringstream out;
  return parse_options(arguments, out);
}

TEST(OptionsTest, ReadTheContractsCommandLine) {
  const auto options = parse({"--server", "http://127.0.0.1:7070", "--trace", "a.jsonl",
                              "--connections", "8", "--limit", "10", "--speed", "0", "--json"});
  ASSERT_TRUE(options && *options) << options.error().detail;
  EXPECT_EQ((*options)->server.port, "7070");
  EXPECT_EQ((*options)->trace, "a.jsonl");
  EXPECT_EQ((*options)->connections, 8U);
  EXPECT_EQ((*options)->limit, 10U);
  EXPECT_EQ((*options)->speed, 0);
  EXPECT_TRUE((*options)->json);
}

TEST(OptionsTest, TokenIsTrimmed) {
  const auto of = [](const char* token) {
    return parse({"--server", "unix:/s", "--trace", "a", "--token", token});
  };
  EXPECT_EQ((*of("secret-1\n"))->token, "secret-1");
  const auto refused = of("secret 1");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().detail, testing::StartsWith("--token has white space"));
  EXPECT_THAT(refused.error().detail, testing::Not(testing::HasSubstr("secret")));
}

TEST(OptionsTest, RefusalDoesNotRepeatAPasswordInTheUrl) {
  for (const char* url : {"http://me:secret@h:1", "http://:secret@h", "me:secret@h:1"}) {
    const auto refused = parse({"--server", url, "--trace", "a"});
    ASSERT_FALSE(refused) << url;
    EXPECT_THAT(refused.error().detail, testing::Not(testing::HasSubstr("secret")));
  }
}

TEST(OptionsTest, SimulationNeedsNoServer) {
  const auto options =
      parse({"--simulate", "--trace", "a.jsonl", "--capacity", "10,200", "--policy",
             "lru,class_hazard,adaptive", "--picture", "a.svg", "--hints", "ended=0.5"});
  ASSERT_TRUE(options && *options) << options.error().detail;
  ASSERT_TRUE((*options)->simulation);
  EXPECT_THAT((*options)->simulation->capacities_blocks, testing::ElementsAre(10U, 200U));
  EXPECT_THAT((*options)->simulation->policies,
              testing::ElementsAre(SimulatedOrder{EvictionKind::lru},
                                   SimulatedOrder{EvictionKind::class_hazard}, kAdaptive));
  EXPECT_EQ((*options)->simulation->picture, "a.svg");
  EXPECT_EQ((*options)->hints.ended, 0.5);
  EXPECT_EQ((*options)->hints.right, 1);
}

TEST(OptionsTest, ReadATableWithNamedColumns) {
  const auto options = parse({"--simulate", "--trace", "a.csv", "--columns",
                              "timestamp=T,input_tokens=In,output_tokens=Out,session=Session ID",
                              "--block-tokens", "16"});
  ASSERT_TRUE(options && *options) << options.error().detail;
  ASSERT_TRUE((*options)->columns);
  EXPECT_EQ((*options)->columns->input_tokens, "In");
  EXPECT_EQ((*options)->columns->session, "Session ID");
  EXPECT_EQ((*options)->block_tokens, 16U);
  EXPECT_EQ((*options)->simulation->block_tokens, 16U);
  EXPECT_THAT(
      parse({"--simulate", "--generate", "chat", "--columns", "timestamp=T"}).error().detail,
      testing::HasSubstr("--columns"));
}

TEST(OptionsTest, ActionsHaveShares) {
  const auto parsed = [](const char* actions) {
    const auto options = parse({"--simulate", "--generate", "agents", "--actions", actions});
    EXPECT_TRUE(options && *options) << options.error().detail;
    return (*options)->actions;
  };
  const ActionOptions all = parsed("pause=1,prefetch=0.8,right=0.9");
  EXPECT_EQ(all.at_pause, ActionOptions::AtPause::fitting);
  EXPECT_EQ(all.paused, 1);
  EXPECT_EQ(all.prefetch, 0.8);
  EXPECT_EQ(all.right, 0.9);
  EXPECT_EQ(parsed("pin=0.5").at_pause, ActionOptions::AtPause::pin);
  EXPECT_EQ(parsed("retain=1").at_pause, ActionOptions::AtPause::retain);
  EXPECT_EQ(parsed("demote=1").at_pause, ActionOptions::AtPause::demote);
  EXPECT_EQ(parsed("within=1").at_pause, ActionOptions::AtPause::within);
  EXPECT_EQ(parsed("prefetch=1").at_pause, ActionOptions::AtPause::none);
  EXPECT_EQ(parsed("prefetch=1").right, 1);
}

TEST(OptionsTest, EngineHasTimes) {
  const auto options = parse({"--server", "http://x:1", "--generate", "agents", "--engine",
                              "token_us=50,block_us=0.5", "--block-tokens", "16"});
  ASSERT_TRUE(options && *options) << options.error().detail;
  EXPECT_EQ((*options)->engine->token_us, 50);
  EXPECT_EQ((*options)->engine->block_us, 0.5);
  EXPECT_EQ((*options)->engine->key_tokens, 16U);
  EXPECT_THAT(
      parse({"--simulate", "--generate", "agents", "--engine", "token_us=1"}).error().detail,
      testing::HasSubstr("--engine is for --server"));
}

TEST(OptionsTest, KvGroupsNameAModel) {
  const auto parsed = [](std::vector<const char*> more) {
    std::vector<const char*> arguments = {"--simulate", "--generate", "chat"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return parse(std::move(arguments));
  };
  const auto options = parsed({"--kv-groups", "gemma", "--block-tokens", "16"});
  ASSERT_TRUE(options && *options) << options.error().detail;
  ASSERT_TRUE((*options)->kv_model);
  EXPECT_EQ((*options)->kv_model->block_tokens, 16U);
  EXPECT_THAT((*options)->simulation->policies,
              testing::ElementsAre(SimulatedOrder{EvictionKind::lru},
                                   SimulatedOrder{EvictionKind::class_hazard}));
  EXPECT_THAT(parsed({"--kv-groups", "gemma", "--policy", "adaptive"}).error().detail,
              testing::HasSubstr("with --kv-groups it must be lru or class_hazard"));
  EXPECT_THAT(parsed({"--kv-groups", "gemini"}).error().detail,
              testing::HasSubstr("--kv-groups gemini: no such file; it takes gemma, state or a"));
}

TEST(OptionsTest, PrintHelpOnRequest) {
  std::ostringstream out;
  const std::vector<const char*> arguments = {"cairn-replay", "--help"};
  const auto options = parse_options(arguments, out);
  ASSERT_TRUE(options);
  EXPECT_FALSE(*options);
  EXPECT_THAT(out.str(), testing::HasSubstr("--connections"));
}

// Each wrong argument is refused with a text that names it.
TEST(OptionsTest, RefusalNamesTheWrongOption) {
  const std::vector<std::pair<std::vector<const char*>, const char*>> wrong = {
      {{"--connections", "0"}, "connections"},
      {{"--connections", "-1"}, "connections"},
      {{"--connections", "99999999999"}, "connections"},
      {{"--connections", "x"}, "connections"},
      {{"--columns", "timestamp=a"}, "columns"},
      {{"--limit", "-1"}, "limit"},
      {{"--speed", "-1"}, "speed"},
      {{"--speed", "nan"}, "speed"},
      {{"--mode", "other"}, "mode"},
      {{"--read-via", "other"}, "read-via"},
      {{"--read-via", "load"}, "unix:/path"},
      {{"--block-bytes", "1000"}, "block-bytes"},
      {{"--outer-dim", "3"}, "outer-dim"},
      {{"--device-blocks", "0", "--pinned-blocks", "0", "--disk-blocks", "0"}, "disk-blocks"},
      {{"--generate", "chat"}, "one of --trace and --generate"},
      {{"--simulate", "--capacity", "0"}, "capacity"},
      {{"--simulate", "--capacity", "10,x"}, "capacity"},
      {{"--simulate", "--capacity", ""}, "capacity"},
      {{"--simulate", "--policy", "fifo"}, "policy"},
      {{"--simulate", "--hints", "ended=2"}, "hints"},
      {{"--simulate", "--hints", "ended"}, "hints"},
      {{"--simulate", "--hints", "right=1"}, "hints"},
      {{"--simulate", "--hints", "ended=1,when=1"}, "hints"},
      {{"--simulate", "--hints", "when=1,right=nan"}, "hints"},
      {{"--simulate", "--hints", "ended="}, "hints"},
      {{"--simulate", "--hints", "maybe=1"}, "hints"},
      {{"--actions", "pin"}, "actions"},
      {{"--actions", "pin=2"}, "actions"},
      {{"--actions", "pin=0"}, "actions"},
      {{"--actions", "right=1"}, "actions"},
      {{"--actions", "pin=1,demote=1"}, "actions"},
      {{"--actions", "prefetch=nan"}, "actions"},
      {{"--actions", "share=1"}, "actions"},
      {{"--actions", "within=1", "--hints", "when=1"}, "two hints"},
      {{"--simulate", "--actions", "pin=1", "--kv-groups", "gemma"}, "--kv-groups"},
      {{"--engine", "token_us"}, "engine"},
      {{"--engine", "token_us=-1"}, "engine"},
      {{"--engine", "token_ms=1"}, "engine"},
      {{"--unheard-of", "1"}, "unheard-of"},
      {{"stray"}, "positional"},
  };
  for (const auto& [arguments, name] : wrong) {
    std::vector<const char*> all = {"--server", "http://x:1", "--trace", "t"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const auto options = parse(all);
    ASSERT_FALSE(options) << arguments[0];
    EXPECT_THAT(options.error().detail, testing::HasSubstr(name)) << arguments[0];
  }
}

TEST(OptionsTest, RequireAServerAndWork) {
  EXPECT_THAT(parse({"--trace", "t"}).error().detail, testing::HasSubstr("--server"));
  EXPECT_THAT(parse({"--server", "http://x:1"}).error().detail, testing::HasSubstr("--trace"));
  EXPECT_THAT(parse({"--server", "x", "--trace", "t"}).error().detail,
              testing::HasSubstr("--server"));
  EXPECT_THAT(parse({"--server", "http://x:1", "--generate", "poems"}).error().detail,
              testing::HasSubstr("--generate"));
}

}  // namespace
}  // namespace cairn::replay
