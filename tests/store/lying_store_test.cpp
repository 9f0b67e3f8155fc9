// A store that sends wrong responses causes misses and no other harm.
#include <gmock/gmock.h>

#include <atomic>
#include <functional>

#include "tests/store/lying_node.hpp"
#include "tests/store/store_client.hpp"

namespace cairn::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;
using ::testing::SizeIs;
using Lie = LyingNode::Answer;
using Asked = LyingNode::Words;

// More than the sockets' buffers on both sides hold, plus one unparsed read.
constexpr std::uint64_t kOnTheWay = 64ull << 20;

// Answers CLUSTER and ROLE correctly, and every other command with `lie`.
LyingNode::Script answering(Lie lie) {
  return [lie](const Asked& command) {
    const std::string& word = command.front();
    return word == "CLUSTER" || word == "ROLE" ? LyingNode::alone(command) : lie;
  };
}

// The first of all answers. The clients have long timeouts, so only received bytes end a request.
StoreClient::Presence first_of(const std::vector<StoreClient::Presence>& all) {
  return all.front();
}

void wait_until_known(StoreClient& client) {
  while (!(*client).stats().is_ready) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

class EndlessAnswer : public ::testing::TestWithParam<Lie> {};

TEST_P(EndlessAnswer, IsAMissForQuestionsAndNotReadToTheEnd) {
  const std::function<void(StoreClient&)> questions[] = {
      [](StoreClient& client) {
        EXPECT_EQ(client.touch("a").error().code, ErrorCode::unavailable);
      },
      [](StoreClient& client) {
        EXPECT_EQ(first_of(client.probe({"a"}, std::chrono::hours(1))),
                  StoreClient::Presence::unknown);
      },
      [](StoreClient& client) {
        EXPECT_FALSE(client.holders({"a"}, std::chrono::hours(1)).front());
      },
      [](StoreClient& client) { EXPECT_EQ(client.announce({"a"}, "me"), 0U); }};
  for (const auto& ask : questions) {
    LyingNode node(answering(GetParam()));
    StoreClient client(StoreClient::patient(node.settings()));
    wait_until_known(client);
    ask(client);
    EXPECT_LT(node.sent_bytes(), kOnTheWay);
  }
}

TEST_P(EndlessAnswer, IsAMissForReads) {
  LyingNode node(answering(GetParam()));
  StoreClient client(StoreClient::patient(node.settings()));
  wait_until_known(client);
  std::string value(1'000, '.');
  EXPECT_FALSE(client.read("a", value));
  EXPECT_EQ(value, std::string(1'000, '.'));
  EXPECT_LT(node.sent_bytes(), kOnTheWay);
}

const std::string kEndless(16'384, 'x');
INSTANTIATE_TEST_SUITE_P(LyingStore, EndlessAnswer,
                         ::testing::Values(Lie{"$1000000000000\r\n", kEndless},  // a text
                                           Lie{"$9000000000000000000\r\n", kEndless},
                                           Lie{"*2147483647\r\n", ":1\r\n:1\r\n"},  // a list
                                           Lie{"*3\r\n*3\r\n*1000000000\r\n", "*1\r\n"},
                                           Lie{"", "*1\r\n"},   // depth
                                           Lie{"+", kEndless},  // lines
                                           Lie{"-ERR ", kEndless}, Lie{":", "1"},
                                           Lie{"", std::string("\0\x1b\xff", 3)}));

TEST(LyingStore, UnrequestedAnswersEndTheConnection) {
  for (const bool is_value : {false, true}) {
    LyingNode node(answering({"", ":1\r\n:1\r\n"}));
    StoreClient client(StoreClient::patient(node.settings()));
    wait_until_known(client);
    std::string value(100, '.');
    const auto answer = is_value ? client.read("a", value) : client.touch("a");
    EXPECT_TRUE(!answer || *answer != is_value);
    while ((*client).stats().nodes.front().last_error.empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    EXPECT_LT(node.sent_bytes(), kOnTheWay);
  }
}

TEST(LyingStore, IgnoresAnAnswerWithTooManyHolders) {
  std::string many = "*40\r\n";
  for (int i = 0; i < 40; ++i) many += LyingNode::bulk(std::to_string(i));
  LyingNode node(answering({many}));
  StoreClient client(StoreClient::patient(node.settings()));
  wait_until_known(client);
  EXPECT_FALSE(client.holders({"a"}).front());
}

TEST(LyingStore, AnAnswerOfAnotherTypeIsNeverAHit) {
  const std::string too_long = "$101\r\n" + std::string(101, 'a') + "\r\n";
  for (const std::string& answer :
       {std::string("*0\r\n"), too_long, std::string("+OK\r\n"), std::string("$-1\r\n"),
        std::string("*-1\r\n"), std::string(":-1\r\n"), std::string("-ERR\r\n"),
        std::string("-\r\n"), std::string("+\r\n"), std::string("$0\r\n\r\n")}) {
    LyingNode node(answering({answer}));
    StoreClient client(StoreClient::patient(node.settings()));
    wait_until_known(client);
    EXPECT_NE(first_of(client.probe({"a"})), StoreClient::Presence::present) << answer;
    std::string value(100, '.');
    const auto read = client.read("a", value);
    EXPECT_FALSE(read && *read) << answer;
    EXPECT_EQ(value, std::string(100, '.')) << answer;
  }
}

// A byte now and then keeps the connection active, but the whole answer has a time limit.
TEST(LyingStore, GivesUpAnswersThatComeByteByByte) {
  LyingNode node(answering({"+", "x", std::chrono::milliseconds(10)}));
  RedisSettings settings = node.settings();
  settings.timeout_ms = 200;
  StoreClient client(settings);
  wait_until_known(client);
  std::vector<std::string> names;
  for (int i = 0; i < 200; ++i) names.push_back(std::to_string(i));
  EXPECT_THAT(client.probe(names, std::chrono::hours(1)), Each(StoreClient::Presence::unknown));
  std::string value(100, '.');
  EXPECT_FALSE(client.read("a", value));
}

TEST(LyingStore, EscapesControlCharactersInErrors) {
  LyingNode node(answering({"-ERR \x1b[2J\xff" + std::string(900, 'x') + "\r\n"}));
  StoreClient client(StoreClient::patient(node.settings()));
  wait_until_known(client);
  const std::string detail = client.touch("a").error().detail;
  EXPECT_THAT(detail, HasSubstr("\\x1b[2J\\xff"));
  EXPECT_THAT(detail, Each(AllOf(Ge(' '), Le('~'))));
  EXPECT_THAT(detail, SizeIs(Le(400U)));
}

std::string number_line(std::int64_t number) { return ":" + std::to_string(number) + "\r\n"; }

std::string slot_range(int first, int last, std::string_view host, std::int64_t port) {
  return "*3\r\n" + number_line(first) + number_line(last) + "*2\r\n" + LyingNode::bulk(host) +
         number_line(port);
}

LyingNode::Script lying_cluster(std::string slots) {
  return [slots](const Asked& command) {
    return command.front() == "CLUSTER" ? Lie{slots} : Lie{":1\r\n"};
  };
}

TEST(LyingStore, IgnoresNodesWithInvalidHostsOrPorts) {
  const std::pair<std::string, std::int64_t> wrong[] = {{"a\nb", 1},
                                                        {"\x1b[2J", 1},
                                                        {"\xff\xfe", 1},
                                                        {std::string("a\0b", 3), 1},
                                                        {"a b", 1},
                                                        {"a\"b", 1},
                                                        {"a/../b", 1},
                                                        {std::string(300, 'a'), 1},
                                                        {"127.0.0.1", 0},
                                                        {"127.0.0.1", -1},
                                                        {"127.0.0.1", 65'536 + 6'379}};
  for (const auto& [host, port] : wrong) {
    std::atomic<int> asked{0};
    LyingNode node([&](const Asked& command) {
      if (command.front() == "CLUSTER") ++asked;
      return Lie{"*1\r\n" + slot_range(0, 16'383, host, port)};
    });
    StoreClient client(StoreClient::patient(node.settings()));
    while (asked < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto stats = (*client).stats();
    EXPECT_FALSE(stats.is_ready) << host;
    ASSERT_THAT(stats.nodes, SizeIs(Le(1U))) << host;
    for (const auto& known : stats.nodes) {
      EXPECT_EQ(known.address, "127.0.0.1:" + std::to_string(node.port()));
      EXPECT_THAT(known.last_error, Each(AllOf(Ge(' '), Le('~'))));
    }
    EXPECT_FALSE(client.touch("a"));
  }
}

TEST(LyingStore, IgnoresAPrimaryWithAnInvalidHost) {
  std::atomic<int> asked{0};
  LyingNode node([&](const Asked& command) {
    if (command.front() != "ROLE") return Lie{"-ERR no cluster\r\n"};
    ++asked;
    return Lie{"*5\r\n$5\r\nslave\r\n" + LyingNode::bulk("evil\r\nhost") + ":6379\r\n" +
               LyingNode::bulk("connected") + ":1\r\n"};
  });
  StoreClient client(StoreClient::patient(node.settings()));
  while (asked < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE((*client).stats().is_ready);
}

TEST(LyingStore, KnowsAtMostAThousandNodesOfACluster) {
  std::string slots = "*16384\r\n";
  for (int slot = 0; slot < 16'384; ++slot) {
    slots += slot_range(slot, slot, "127.0.1." + std::to_string(slot % 250), 1 + slot);
  }
  LyingNode node(lying_cluster(slots));
  StoreClient client(StoreClient::patient(node.settings()));
  wait_until_known(client);
  EXPECT_THAT((*client).stats().nodes, SizeIs(Le(1'025U)));
  // A probe of any of them ends, and at once.
  std::vector<std::string> names;
  for (int i = 0; i < 512; ++i) names.push_back("name " + std::to_string(i));
  EXPECT_THAT(client.probe(names, std::chrono::hours(1)),
              Each(Not(StoreClient::Presence::present)));
}

TEST(LyingStore, IgnoresAClusterWithDuplicateSlots) {
  std::string slots = "*1000\r\n";
  for (int i = 0; i < 1'000; ++i) slots += slot_range(0, 16'383, "127.0.0.1", 1 + i);
  std::atomic<int> asked{0};
  LyingNode node([&](const Asked& command) {
    if (command.front() == "CLUSTER") ++asked;
    return Lie{slots};
  });
  StoreClient client(StoreClient::patient(node.settings()));
  while (asked < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE((*client).stats().is_ready);
}

TEST(LyingStore, StopsReadingAnEndlessCluster) {
  LyingNode node([](const Asked& command) {
    return command.front() == "CLUSTER" ? Lie{"*16384\r\n", slot_range(0, 0, kEndless, 1)}
                                        : Lie{":1\r\n"};
  });
  StoreClient client(StoreClient::patient(node.settings()));
  while ((*client).stats().nodes.empty() || (*client).stats().nodes.front().last_error.empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_LT(node.sent_bytes(), kOnTheWay);
}

// Each answer redirects the command, to an unknown node or back to this one.
TEST(LyingStore, EndlessRedirectsEndAndLeaveNoNodes) {
  std::atomic<bool> lies{true};
  std::atomic<int> redirects{0};
  std::uint16_t own_port = 0;
  LyingNode node([&](const Asked& command) {
    if (command.front() == "CLUSTER" || command.front() == "ROLE" || !lies) {
      return LyingNode::alone(command);
    }
    const int turn = ++redirects;
    const int port = turn % 3 == 0 ? own_port : 10 + turn % 4'000;
    return Lie{(turn % 2 == 0 ? "-MOVED " : "-ASK ") + std::to_string(turn % 16'384) +
               " 127.0.0.1:" + std::to_string(port) + "\r\n"};
  });
  own_port = node.port();
  StoreClient client(StoreClient::patient(node.settings()));
  wait_until_known(client);
  for (int i = 0; i < 1'500; ++i) EXPECT_FALSE(client.touch("a" + std::to_string(i)));
  EXPECT_THAT((*client).stats().nodes, SizeIs(1U));
  lies = false;
  while (!client.touch("a")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

TEST(LyingStore, ARedirectToAnInvalidHostIsAnIoError) {
  for (const std::string where :
       {"a b:1", "\x1b[2J:1", "127.0.0.1:0", "127.0.0.1:99999", "\xff\xfe:6379", "a/b:1"}) {
    LyingNode node(answering({"-MOVED 5 " + where + "\r\n"}));
    StoreClient client(StoreClient::patient(node.settings()));
    wait_until_known(client);
    EXPECT_EQ(client.touch("a").error().code, ErrorCode::io_error) << where;
    EXPECT_THAT((*client).stats().nodes, SizeIs(1U));
  }
}

}  // namespace
}  // namespace cairn::testing
