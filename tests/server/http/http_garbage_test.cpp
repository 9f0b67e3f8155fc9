#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/server/http/http_fixture.hpp"

namespace cairn::http::testing {
namespace {

// Half random bytes, half pieces of HTTP in a random order.
std::string garbage(std::mt19937_64& random) {
  static constexpr std::string_view kPieces[] = {"GET ",
                                                 "PUT ",
                                                 "/",
                                                 " HTTP/1.1\r\nHost: x\r\n",
                                                 " HTTP/1.0\r\n",
                                                 "\r\n",
                                                 "\r\n\r\n",
                                                 "Content-Length: ",
                                                 "10\r\n",
                                                 "0\r\n",
                                                 "-1\r\n",
                                                 ":",
                                                 "Transfer-Encoding: chunked\r\n",
                                                 "Connection: close\r\n",
                                                 "Expect: 100-continue\r\n",
                                                 "ffffffffffffffff\r\n",
                                                 "5;a=b\r\n",
                                                 "hello",
                                                 " ",
                                                 "\t",
                                                 "\n",
                                                 "\r"};
  std::string text;
  const auto parts = random() % 60;
  for (std::uint64_t i = 0; i < parts; ++i) {
    if (random() % 4 == 0) {
      text += static_cast<char>(random() % 256);
    } else {
      text += kPieces[random() % std::size(kPieces)];
    }
  }
  return text;
}

TEST_F(HttpTest, GarbageNeverHarmsTheNextClient) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  start();
  for (int i = 0; i < 300; ++i) {
    SocketClient client = connect();
    const std::string text = garbage(random);
    const std::size_t cut = text.empty() ? 0 : random() % text.size();
    client.send(text.substr(0, cut));
    client.send(text.substr(cut));
    client.shutdown_send();
    // Every response is complete, and then the server closes.
    while (true) {
      const ClientResponse response = client.receive();
      if (response.status == 0) break;
      EXPECT_TRUE(response.complete);
    }
  }
  SocketClient client = connect();
  client.send("GET /well HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.receive().body, "GET /well? ");
  client.close();
  EXPECT_TRUE(none_open());
}

}  // namespace
}  // namespace cairn::http::testing
