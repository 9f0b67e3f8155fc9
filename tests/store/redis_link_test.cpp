// A connection to a node, and the order of its commands.
#include "transport/store/redis_link.hpp"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>

#include "tests/store/listening_node.hpp"

namespace cairn::testing {
namespace {

TEST(RedisLink, RequestsAFewValuesAtATime) {
  boost::asio::io_context io;
  ListeningNode node;
  RedisSettings settings;
  settings.timeout_ms = 60'000;
  const auto link = RedisLink::open({.io = io,
                                     .settings = settings,
                                     .node = {"127.0.0.1", node.port()},
                                     .carries = RedisLink::Carries::values,
                                     .ended = [](const Error&) {}});
  node.accept(io);
  constexpr std::size_t kValueBytes = 600'000;
  std::vector<std::string> values(4, std::string(kValueBytes, '\0'));
  int answers = 0;
  for (std::string& value : values) {
    RedisLink::Command get{.head = redis_command({"GET", "a"}),
                           .into = {{value.data(), kValueBytes}}};
    get.done = [&](const Result<RedisReply>& reply) { answers += reply.has_value() ? 1 : 0; };
    link->send(std::move(get));
  }
  const std::size_t command_bytes = redis_command({"GET", "a"}).size();
  const std::string answer = "$600000\r\n" + std::string(kValueBytes, 'x') + "\r\n";
  // Two values exceed 1 MiB; the others follow one by one.
  for (int answered = 0; answered < 4; ++answered) {
    const auto asked = static_cast<std::size_t>(std::min(4, answered + 2));
    node.receive(io, asked * command_bytes);
    io.poll();
    EXPECT_EQ(node.received(), asked * command_bytes);
    node.send(io, answer);
    while (answers <= answered) io.poll();
  }
  for (const std::string& value : values) EXPECT_EQ(value, std::string(kValueBytes, 'x'));
  link->fail({ErrorCode::cancelled, "the test ends"});
}

// Otherwise a callback would send the next command on a dead link.
TEST(RedisLink, FailedCommandEndsTheLink) {
  boost::asio::io_context io;
  ListeningNode node;
  RedisSettings settings;
  settings.timeout_ms = 60'000;
  bool has_ended = false;
  const auto link = RedisLink::open({.io = io,
                                     .settings = settings,
                                     .node = {"127.0.0.1", node.port()},
                                     .ended = [&](const Error&) { has_ended = true; }});
  node.accept(io);
  int found_ended = 0;
  const auto send = [&] {
    link->send({.head = redis_command({"PING"}), .done = [&](const Result<RedisReply>& reply) {
                  found_ended += !reply && has_ended ? 1 : 0;
                }});
  };
  send();
  node.receive(io, redis_command({"PING"}).size());
  send();
  link->fail({ErrorCode::unavailable, "it fails"});
  EXPECT_EQ(found_ended, 2);
}

}  // namespace
}  // namespace cairn::testing
