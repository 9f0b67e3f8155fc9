#include <cstdlib>
#include <fstream>

#include "tests/e2e/support/served_test.hpp"

// The command line against a real server.
namespace cairn::e2e {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

struct Outcome {
  std::optional<int> code;
  std::string out;
  std::string err;
  json document() const { return json::parse(out, nullptr, false); }
};

Outcome run(std::vector<std::string> command) {
  ChildProcess child(command);
  const auto code = child.wait();
  return {code, child.standard_output(), child.standard_error()};
}

class CtlTest : public ServedTest {
 protected:
  Outcome ctl(const std::vector<std::string>& words) {
    std::vector<std::string> command = {CAIRN_CTL_PROGRAM, "--server", server().url()};
    command.insert(command.end(), words.begin(), words.end());
    return run(command);
  }
  std::string file_with(const std::string& bytes) {
    const auto path = folder_.path() / ("file-" + std::to_string(++files_));
    std::ofstream(path, std::ios::binary) << bytes;
    return path.string();
  }

  fakes::TempDir folder_;
  int files_ = 0;
};

TEST_F(CtlTest, IgnoresWhiteSpaceOnlyAroundAToken) {
  const auto list_with = [](const std::string& token) {
    return run({"/usr/bin/env", "CAIRN_TOKEN=" + token, CAIRN_CTL_PROGRAM, "--server",
                server().url(), "caches", "list"});
  };
  for (const char* token : {"secret-1\n", " secret-1\r\n"}) {
    const Outcome done = list_with(token);
    EXPECT_EQ(done.code, 0) << done.err;
  }
  for (const char* token : {"secret\n1", "secret 1", " \n"}) {
    const Outcome refused = list_with(token);
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, StartsWith("cairnctl: CAIRN_TOKEN has white space"));
    EXPECT_THAT(refused.err, testing::Not(HasSubstr("secret")));
  }
  EXPECT_THAT(ctl({"--token", "secret\n1", "caches", "list"}).err, HasSubstr("--token has white"));
}

TEST(HashToken, IgnoresWhiteSpaceAroundTheToken) {
  const auto hash_of = [](const std::string& printed) {
    return run(
        {"/bin/sh", "-c",
         "printf '" + printed + "' | '" + std::string(CAIRN_SERVER_PROGRAM) + "' --hash-token"});
  };
  const Outcome plain = hash_of("secret-secret-secret");
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(hash_of(" secret-secret-secret \\r\\n").out, plain.out);
  EXPECT_EQ(hash_of("secret-secret secret").code, 2);
}

TEST_F(CtlTest, StoresFindsAndReadsBlocks) {
  TestCache cache(rest_, {.pinned = 4, .disk = 4});
  EXPECT_EQ(ctl({"put", cache.name(), key(1), file_with(block(1))}).code, 0);
  const Outcome second = ctl({"put", cache.name(), key(2), file_with(block(2)), "--parent", key(1),
                              "--tier", "disk", "--json"});
  EXPECT_EQ(second.code, 0) << second.err;
  cache.expect_intact(1);
  EXPECT_EQ(cache.expect_intact(2), "disk");
  EXPECT_THAT(ctl({"put", cache.name(), key(1), file_with(block(1))}).out,
              HasSubstr("was there already"));

  const Outcome match = ctl({"match", cache.name(), key(1), key(2), key(3)});
  EXPECT_EQ(match.code, 0);
  EXPECT_THAT(match.out, StartsWith("2 of 3 keys are there\n"));
  const json leased = ctl({"match", cache.name(), key(1), "--lease-ms", "1m", "--json"}).document();
  EXPECT_EQ(leased.at("matched"), 1);
  EXPECT_THAT(rest_.del("/v1/leases/" + leased.at("lease").get<std::string>()), has_status(200));

  EXPECT_EQ(ctl({"get", cache.name(), key(2)}).out, block(2));
  const std::string path = (folder_.path() / "out").string();
  EXPECT_EQ(ctl({"get", cache.name(), key(1), "--output", path}).code, 0);
  std::ifstream in(path, std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), block(1));
}

TEST_F(CtlTest, ListsDeletesAndClearsBlocks) {
  TestCache cache(rest_, {.pinned = 4, .disk = 4});
  for (int number = 1; number <= 3; ++number) {
    ASSERT_EQ(ctl({"put", cache.name(), key(number), file_with(block(number))}).code, 0);
  }
  const json list = ctl({"blocks", "list", cache.name(), "--tier", "pinned", "--json"}).document();
  EXPECT_EQ(list["blocks"].size(), 3u);
  const Outcome first =
      ctl({"blocks", "list", cache.name(), "--state", "evictable", "--limit", "1"});
  EXPECT_THAT(first.out, HasSubstr(key(1)));
  EXPECT_THAT(first.out, HasSubstr("--cursor"));

  const Outcome deleted = ctl({"delete", cache.name(), key(1), key(3)});
  EXPECT_EQ(deleted.out, key(1) + " was deleted\n" + key(3) + " was deleted\n") << deleted.err;
  const Outcome gone = ctl({"delete", cache.name(), key(1)});
  EXPECT_EQ(gone.code, 1);
  EXPECT_THAT(gone.err, HasSubstr("unknown_key"));

  EXPECT_EQ(ctl({"caches", "clear", cache.name(), "--tier", "disk"}).out,
            "0 copies were dropped; 0 stay because a lease holds them\n");
  EXPECT_EQ(ctl({"caches", "clear", cache.name()}).out,
            "1 copies were dropped; 0 stay because a lease holds them\n");
  EXPECT_EQ(rest_.get("/v1/caches/" + cache.name() + "/keys/" + key(2)).status, 404u);
}

TEST_F(CtlTest, ListsGroups) {
  const Outcome none = ctl({"groups", "list"});
  EXPECT_EQ(none.code, 0) << none.err;
  EXPECT_THAT(none.out, StartsWith("GROUP"));
}

TEST_F(CtlTest, StoresFindsAndReadsBlocksOfAKvGroup) {
  const json layout = {{"num_layers", 1},
                       {"outer_dim", 1},
                       {"page_size", 4},
                       {"inner_dim", 2},
                       {"dtype_width_bytes", 1}};
  json state = layout;
  state["page_size"] = 1;
  const TestCache cache =
      TestCache::made_of(rest_, {{"block_tokens", 4},
                                 {"kv_groups",
                                  {{{"name", "full"}, {"kind", "full"}, {"layout", layout}},
                                   {{"name", "state"}, {"kind", "state"}, {"layout", state}}}},
                                 {"tiers", {{"pinned", {{"size_bytes", 1 << 16}}}}}});
  for (const std::string group : {"full", "state"}) {
    const std::string bytes(group == "full" ? 8 : 2, group.front());
    EXPECT_EQ(ctl({"put", cache.name(), key(1), file_with(bytes), "--kv-group", group}).code, 0);
    EXPECT_EQ(ctl({"get", cache.name(), key(1), "--kv-group", group}).out, bytes);
  }
  const Outcome match = ctl({"match", cache.name(), key(1), key(2)});
  EXPECT_THAT(match.out, StartsWith("1 of 2 keys are there\n"));
  EXPECT_THAT(match.out, HasSubstr("KV GROUP"));
  const json have = ctl({"match", cache.name(), key(1), "--have", "1", "--json"}).document();
  EXPECT_EQ(have.at("blocks").size(), 1u);
  EXPECT_THAT(ctl({"get", cache.name(), key(1)}).err, HasSubstr("it has full, state"));
}

TEST_F(CtlTest, StoresAndReadsShardsOfABlock) {
  const TestCache cache = TestCache::made_of(rest_, {{"layout",
                                                      {{"num_layers", 2},
                                                       {"outer_dim", 2},
                                                       {"page_size", 1},
                                                       {"inner_dim", 1},
                                                       {"dtype_width_bytes", 1},
                                                       {"shards", 2}}},
                                                     {"tiers", {{"pinned", {{"num_blocks", 2}}}}}});
  const auto put = [&](const std::string& shard, const std::string& bytes) {
    return ctl({"put", cache.name(), key(1), file_with(bytes), "--shard", shard, "--shards", "2"});
  };
  EXPECT_THAT(put("1", "bd").out, HasSubstr("the block lacks other parts"));
  EXPECT_EQ(put("0", "ac").code, 0);
  EXPECT_EQ(ctl({"get", cache.name(), key(1)}).out, "abcd");
  EXPECT_EQ(ctl({"get", cache.name(), key(1), "--shard", "1", "--shards", "2"}).out, "bd");
}

TEST_F(CtlTest, ShowsDevicesAndEndsAgents) {
  const Outcome devices = ctl({"devices", "list"});
  EXPECT_EQ(devices.code, 0) << devices.err;
  EXPECT_THAT(devices.out, HasSubstr("host device 0"));
  EXPECT_EQ(ctl({"devices", "list", "--json"}).document().at("devices").at(0).at("uuid"), "host-0");
  EXPECT_THAT(ctl({"devices", "empty", "0"}).out, HasSubstr("went back\n"));
  EXPECT_EQ(ctl({"devices", "reset-peaks", "0"}).code, 0);
  EXPECT_THAT(ctl({"devices", "empty", "7"}).err, HasSubstr("there is no device '7'"));
  EXPECT_THAT(ctl({"agents", "list"}).out, StartsWith("AGENT"));
  EXPECT_THAT(ctl({"agents", "end", "nobody"}).err, HasSubstr("there is no agent 'nobody'"));
}

TEST_F(CtlTest, PinsBlocksAndListsAndEndsPins) {
  TestCache cache(rest_, {.pinned = 8, .disk = 8});
  cache.store(1);
  const Outcome pinned = ctl({"actions", cache.name(), "pin", key(1), key(2), "--ttl-ms", "60000"});
  EXPECT_EQ(pinned.code, 0) << pinned.err;
  EXPECT_THAT(pinned.out, HasSubstr("accepted: 1 blocks, 1 missing"));
  const json list = ctl({"pins", "list", cache.name(), "--json"}).document();
  const std::string pin = list.at("pins").at(0).at("pin");
  EXPECT_THAT(pinned.out, HasSubstr(pin));
  EXPECT_THAT(ctl({"pins", "list", cache.name()}).out, HasSubstr(pin));
  EXPECT_THAT(ctl({"pins", "end", pin}).out, HasSubstr("1 blocks"));
  EXPECT_EQ(ctl({"pins", "end", pin}).code, 1);
  EXPECT_THAT(ctl({"actions", cache.name(), "unpin", "chat", "--session"}).out,
              HasSubstr("missing"));
}

TEST_F(CtlTest, ListsSessions) {
  TestCache cache(rest_, {.pinned = 8, .disk = 8});
  cache.store(1, "?session=chat-1");
  cache.store(2, "?session=chat-2");
  const Outcome list = ctl({"sessions", cache.name(), "--limit", "1"});
  EXPECT_EQ(list.code, 0) << list.err;
  EXPECT_THAT(list.out, HasSubstr("chat-2"));
  EXPECT_THAT(list.out, HasSubstr("2 conversations are known"));
  EXPECT_EQ(ctl({"sessions", cache.name(), "--json"}).document().at("sessions").size(), 2u);
}

TEST_F(CtlTest, ListsLeasesAndTransfersAndEndsALease) {
  TestCache cache(rest_, {.device = 2, .disk = 2});
  EXPECT_EQ(ctl({"put", cache.name(), key(1), file_with(block(1)), "--priority", "3", "--metadata",
                 "{\"a\": 1}", "--if-exists", "error"})
                .code,
            0);
  EXPECT_EQ(ctl({"put", cache.name(), key(1), file_with(block(1)), "--if-exists", "error"}).code,
            1);
  const json lease = cache.match(keys(1, 1), 60'000).at("lease");
  const Outcome listed = ctl({"leases", "list", cache.name()});
  EXPECT_EQ(listed.code, 0) << listed.err;
  EXPECT_THAT(listed.out, HasSubstr(lease.get<std::string>()));
  EXPECT_EQ(ctl({"leases", "list", cache.name(), "--json"}).document().at("leases").size(), 1U);
  EXPECT_THAT(ctl({"leases", "end", lease.get<std::string>()}).out, HasSubstr("1 blocks"));
  EXPECT_EQ(ctl({"leases", "list", cache.name(), "--json"}).document().at("leases").size(), 0U);

  cache.transfer({key(1)}, "disk");
  const Outcome moved = ctl({"transfers", "list", "--cache", cache.name(), "--state", "done"});
  EXPECT_THAT(moved.out, HasSubstr(cache.name()));
  EXPECT_THAT(moved.out, HasSubstr("done"));
  EXPECT_THAT(ctl({"transfers", "list", "--limit", "1"}).out, HasSubstr("t-"));
}

TEST_F(CtlTest, DrainsACacheAndListsPendingBlocks) {
  TestCache cache(rest_, {.pinned = 4, .disk = 4});
  cache.store(1);
  EXPECT_THAT(ctl({"drain", cache.name()}).out, HasSubstr("done: 1 of 1 blocks"));
  EXPECT_EQ(rest_.get(cache.path("/blocks?tier=disk")).document().at("blocks").size(), 1U);
  const Outcome pending = ctl({"pending", cache.name()});
  EXPECT_EQ(pending.code, 0) << pending.err;
  EXPECT_THAT(pending.out, StartsWith("KEY"));
  EXPECT_EQ(ctl({"pending", cache.name(), "--json"}).document(),
            rest_.get(cache.path("/pending")).document());
  EXPECT_THAT(ctl({"pending", "nowhere"}).err, HasSubstr("nowhere"));
}

TEST_F(CtlTest, ShowsTheServerAndItsCaches) {
  TestCache cache(rest_, {.device = 2, .disk = 4});
  cache.store(1);
  const Outcome status = ctl({"status"});
  EXPECT_EQ(status.code, 0) << status.err;
  EXPECT_THAT(status.out, HasSubstr("ready"));
  EXPECT_THAT(status.out, HasSubstr(cache.name()));
  EXPECT_EQ(ctl({"status", "--json"}).document().at("state"), "ready");
  const Outcome shown = ctl({"caches", "show", cache.name()});
  EXPECT_THAT(shown.out, HasSubstr("device"));
  EXPECT_THAT(shown.out, Not(HasSubstr("pinned")));
  EXPECT_EQ(ctl({"caches", "list", "--json"}).document(), rest_.get("/v1/caches").document());

  const std::string body = file_with(cache_body({.pinned = 2}).dump());
  EXPECT_EQ(ctl({"caches", "create", "made", body}).out, "made was made\n");
  EXPECT_EQ(ctl({"caches", "create", "made", body}).out, "made was there already\n");
  EXPECT_EQ(ctl({"caches", "delete", "made"}).code, 0);
  EXPECT_THAT(rest_.get("/v1/caches/made"), has_status(404));
}

TEST_F(CtlTest, PrintsAdviceInWords) {
  json body = cache_body({.pinned = 4});
  body["eviction"] = "lru";
  TestCache cache = TestCache::made_of(rest_, body);
  EXPECT_THAT(ctl({"advise", cache.name()}).out, HasSubstr("Too few lookups"));
  // Eight prompts in rotation. The cache has room for four, so no lookup finds its block.
  for (int i = 0; i < 1'600; ++i) {
    const json matched = cache.match(keys(i % 8, 1), 30'000);
    if (matched.at("matched") == 0) cache.store(i % 8);
  }
  const Outcome advice = ctl({"advise", cache.name()});
  EXPECT_EQ(advice.code, 0) << advice.err;
  EXPECT_THAT(advice.out, HasSubstr("Twice the capacity would find 100% instead of 0%"));
  EXPECT_THAT(advice.out, HasSubstr("A GiB more of tier pinned"));
  EXPECT_THAT(advice.out, HasSubstr("class_hazard"));
  EXPECT_EQ(ctl({"advise", cache.name(), "--json"}).document().at("points").size(), 5U);
}

TEST_F(CtlTest, MovesBlocksAndManagesSnapshots) {
  TestCache cache(rest_, {.pinned = 4, .disk = 4});
  cache.store_prefix(1, 3, "pinned");
  const Outcome moved = ctl({"transfers", "start", cache.name(), "disk", key(1), key(2), "--move"});
  EXPECT_EQ(moved.code, 0) << moved.err;
  EXPECT_THAT(moved.out, HasSubstr("done: 2 of 2 blocks"));
  const std::string id = moved.out.substr(0, moved.out.find(' '));
  EXPECT_THAT(ctl({"transfers", "show", id}).out, HasSubstr("done"));
  EXPECT_EQ(ctl({"transfers", "cancel", id}).code, 0);

  EXPECT_EQ(ctl({"snapshots", "make", cache.name(), "s", "--compress"}).code, 0);
  EXPECT_THAT(ctl({"snapshots", "list", cache.name()}).out, HasSubstr("zstd"));
  ASSERT_TRUE(rest_.post(cache.path("/clear")).ok());
  const Outcome back = ctl({"snapshots", "restore", cache.name(), "s", "--json"});
  EXPECT_EQ(back.code, 0) << back.err;
  EXPECT_EQ(back.document().at("blocks_done"), 3);
  for (int n = 1; n <= 3; ++n) cache.expect_intact(n);
  EXPECT_EQ(ctl({"snapshots", "delete", cache.name(), "s"}).code, 0);
  EXPECT_EQ(ctl({"snapshots", "list", cache.name(), "--json"}).document(),
            json({{"snapshots", json::array()}}));
}

TEST_F(CtlTest, FailsIfTheServersWorkFails) {
  TestCache cache(rest_, {.pinned = 4});
  cache.store(1);
  EXPECT_EQ(ctl({"snapshots", "make", cache.name(), "s"}).code, 0);
  const auto file = server().data_dir() / "snapshots" / cache.name() / "s.snapshot";
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(300).put('!').put('?');
  ASSERT_TRUE(rest_.post(cache.path("/clear")).ok());
  const Outcome back = ctl({"snapshots", "restore", cache.name(), "s"});
  EXPECT_EQ(back.code, 1);
  EXPECT_THAT(back.err, HasSubstr("broken_snapshot"));
}

TEST_F(CtlTest, TopPrintsRatesRepeatedly) {
  TestCache cache(rest_, {.pinned = 4});
  const Outcome top = ctl({"top", "--count", "2", "--interval-ms", "1", "--json"});
  EXPECT_EQ(top.code, 0) << top.err;
  EXPECT_EQ(std::count(top.out.begin(), top.out.end(), '\n'), 2);
  const json first = json::parse(top.out.substr(0, top.out.find('\n')));
  EXPECT_GE(first.at("requests_per_s"), 0);
  bool found = false;
  for (const json& one : first.at("caches")) {
    if (one.at("cache") != cache.name()) continue;
    found = true;
    EXPECT_EQ(one.at("tiers").at("pinned").at("capacity"), 4);
  }
  EXPECT_TRUE(found) << top.out;
  EXPECT_THAT(ctl({"top", "--count", "1", "--interval-ms", "1"}).out, HasSubstr(cache.name()));
}

TEST_F(CtlTest, FollowsEvents) {
  TestCache cache(rest_, {.pinned = 4});
  ChildProcess events(
      {CAIRN_CTL_PROGRAM, "--server", server().url(), "events", "--cache", cache.name()});
  ASSERT_TRUE(events.wait_for_line("listening")) << events.standard_error();
  ASSERT_EQ(ctl({"put", cache.name(), key(1), file_with(block(1))}).code, 0);
  ASSERT_EQ(ctl({"delete", cache.name(), key(1)}).code, 0);
  ASSERT_TRUE(events.wait_for_line(R"("event":"removed")")) << events.standard_output();
  const std::string lines = events.standard_output();
  const json stored = json::parse(lines.substr(0, lines.find('\n')));
  EXPECT_EQ(stored.at("event"), "stored");
  EXPECT_EQ(stored.at("keys"), json::array({key(1)}));
  EXPECT_EQ(stored.at("tier"), "pinned");
  events.signal(SIGINT);
  EXPECT_EQ(events.wait(), 128 + SIGINT);
  const Outcome none = ctl({"events", "--cache", "none"});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("unknown_cache"));
}

// Numbers by hand: 2 x heads x head size x bytes of a value, for each layer.
TEST(CtlSize, ComputesConversationsOfAModelWithoutAServer) {
  const auto size = [](const json& config, std::vector<std::string> options = {}) {
    const fakes::TempDir folder;
    const auto path = folder.path() / "config.json";
    std::ofstream(path) << config.dump();
    std::vector<std::string> command = {CAIRN_CTL_PROGRAM, "size", path.string(), "--json"};
    command.insert(command.end(), options.begin(), options.end());
    return run(command);
  };
  // Llama 3.1 8B.
  const json llama = {{"num_hidden_layers", 32},
                      {"num_attention_heads", 32},
                      {"num_key_value_heads", 8},
                      {"hidden_size", 4096},
                      {"torch_dtype", "bfloat16"}};
  const json of_llama = size(llama, {"--tokens", "1000", "--conversations", "3"}).document();
  EXPECT_EQ(of_llama.at("bytes_of_token"), 32 * 2 * 8 * 128 * 2);
  EXPECT_EQ(of_llama.at("bytes"), 3 * 1000 * 32 * 2 * 8 * 128 * 2);
  EXPECT_EQ(size(llama, {"--value-bytes", "1"}).document().at("bytes_of_token"), 32 * 2 * 8 * 128);
  // DeepSeek-V3: latent attention.
  const json deepseek = {{"num_hidden_layers", 61},
                         {"num_attention_heads", 128},
                         {"kv_lora_rank", 512},
                         {"qk_rope_head_dim", 64},
                         {"dtype", "bfloat16"}};
  EXPECT_EQ(size(deepseek).document().at("bytes_of_token"), 61 * (512 + 64) * 2);
  // gpt-oss: every second layer has a window.
  json gpt = {{"num_hidden_layers", 4},
              {"num_attention_heads", 64},
              {"num_key_value_heads", 8},
              {"head_dim", 64},
              {"sliding_window", 128}};
  gpt["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention",
                        "full_attention"};
  const json of_gpt = size(gpt).document();
  EXPECT_EQ(of_gpt.at("bytes_of_token"), 2 * 2 * 8 * 64 * 2);
  EXPECT_EQ(of_gpt.at("bytes_of_end"), 2 * 128 * 2 * 8 * 64 * 2);
  // Gemma 3, whose older config names a pattern, and has the text's part apart.
  const json gemma = {{"text_config",
                       {{"num_hidden_layers", 12},
                        {"num_attention_heads", 8},
                        {"num_key_value_heads", 4},
                        {"head_dim", 256},
                        {"sliding_window", 1024},
                        {"sliding_window_pattern", 6}}}};
  const json of_gemma = size(gemma).document();
  EXPECT_EQ(of_gemma.at("full_layers"), 2);
  EXPECT_EQ(of_gemma.at("bytes_of_end"), 10 * 1024 * 2 * 4 * 256 * 2);
  // Qwen3-Next: a state is values x keys of a head in float32, and the rest of the convolution.
  json qwen = {{"num_hidden_layers", 2},       {"num_attention_heads", 16},
               {"num_key_value_heads", 2},     {"head_dim", 256},
               {"linear_num_key_heads", 16},   {"linear_key_head_dim", 128},
               {"linear_num_value_heads", 32}, {"linear_value_head_dim", 128},
               {"linear_conv_kernel_dim", 4}};
  qwen["layer_types"] = {"linear_attention", "full_attention"};
  EXPECT_EQ(size(qwen).document().at("bytes_of_end"),
            32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2);
  // Wrong input is named.
  qwen["layer_types"] = {"telepathy", "full_attention"};
  EXPECT_THAT(size(qwen).err, HasSubstr("the type 'telepathy'"));
  EXPECT_THAT(size({{"num_hidden_layers", 2}}).err, HasSubstr("num_attention_heads"));
  EXPECT_EQ(run({CAIRN_CTL_PROGRAM, "size", "/nowhere"}).code, 1);
}

TEST_F(CtlTest, PrintsTheServersReason) {
  TestCache cache(rest_, {.pinned = 2});
  const Outcome unknown = ctl({"get", cache.name(), key(1)});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.out, IsEmpty());
  EXPECT_THAT(unknown.err, HasSubstr("404 unknown_key"));
  EXPECT_THAT(unknown.err, HasSubstr(key(1)));
  const Outcome length = ctl({"put", cache.name(), key(1), file_with("short")});
  EXPECT_EQ(length.code, 1);
  EXPECT_THAT(length.err, HasSubstr("wrong_length"));
  EXPECT_EQ(ctl({"put", cache.name(), key(1), "/nonexistent"}).code, 1);
}

TEST_F(CtlTest, RefusesWrongArgumentsByName) {
  const auto refused = [&](const std::vector<std::string>& words) {
    const Outcome outcome = ctl(words);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    return outcome.err;
  };
  EXPECT_THAT(refused({}), HasSubstr("command is missing"));
  EXPECT_THAT(refused({"nonsense"}), HasSubstr("'nonsense'"));
  EXPECT_THAT(refused({"snapshots"}), HasSubstr("list, make, restore, delete"));
  EXPECT_THAT(refused({"snapshots", "make", "c"}), HasSubstr("usage: cairnctl snapshots make"));
  EXPECT_THAT(refused({"get", "c", "aa", "more"}), HasSubstr("usage: cairnctl get"));
  EXPECT_THAT(refused({"get", "c", "aa", "--compress"}), HasSubstr("--compress is not for 'get'"));
  EXPECT_THAT(refused({"top", "--count", "-1"}), HasSubstr("--count"));
  EXPECT_THAT(refused({"match", "c", "aa", "--lease-ms", "10x"}),
              HasSubstr("it takes a number, or one with a unit, as in 10s"));
  EXPECT_THAT(refused({"status", "--nonsense"}), HasSubstr("nonsense"));
  EXPECT_EQ(run({CAIRN_CTL_PROGRAM, "--server", "ftp://x", "status"}).code, 2);
}

TEST_F(CtlTest, ReportsAnUnreachableServer) {
  const Outcome outcome = run({CAIRN_CTL_PROGRAM, "--server", "http://127.0.0.1:1", "status"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("127.0.0.1:1"));
}

TEST_F(CtlTest, FindsTheServerInTheEnvironment) {
  EXPECT_EQ(
      run({"/usr/bin/env", "CAIRN_SERVER=" + server().url(), CAIRN_CTL_PROGRAM, "status"}).code, 0);
}

TEST_F(CtlTest, CompletesCommandsInBash) {
  const auto completed = [](const std::string& line, int word) {
    return run({"/bin/bash", "-c",
                "source <(\"$0\" completion bash); COMP_WORDS=(" + line + "); COMP_CWORD=" +
                    std::to_string(word) + "; _cairnctl; echo \"${COMPREPLY[@]}\"",
                CAIRN_CTL_PROGRAM})
        .out;
  };
  EXPECT_EQ(completed("cairnctl snap", 1), "snapshots\n");
  EXPECT_EQ(completed("cairnctl --server x snapshots re", 4), "restore\n");
  EXPECT_EQ(completed("cairnctl --comp", 1), "--compress\n");
}

TEST_F(CtlTest, PrintsCompletionsForZshAndFish) {
  EXPECT_THAT(ctl({"completion", "zsh"}).out,
              HasSubstr("autoload -Uz bashcompinit && bashcompinit\n# Completion of cairnctl"));
  const std::string fish = ctl({"completion", "fish"}).out;
  EXPECT_THAT(fish, HasSubstr("complete -c cairnctl -n __fish_use_subcommand -a drain -d "
                              "'move every block to a tier (default: the lowest)'\n"));
  EXPECT_THAT(fish, HasSubstr("-a restore -d 'restore the blocks'\n"));
  EXPECT_THAT(fish, HasSubstr("complete -c cairnctl -l kv-group -r -d 'the block\\'s KV group"));
}

}  // namespace
}  // namespace cairn::e2e
