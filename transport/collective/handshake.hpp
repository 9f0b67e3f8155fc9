#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "transport/collective/link_socket.hpp"

namespace cairn {

// The first message on a connection.
struct Hello {
  static constexpr std::uint64_t kMagic = 0x31'4F'4C'4C'45'48'43'43;  // "CCHELLO1"
  std::uint64_t magic = kMagic;
  std::array<std::byte, 16> secret{};
  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;
  std::uint32_t port = 0;  // the port this rank listens on
  std::uint32_t reserved = 0;
};
static_assert(sizeof(Hello) == 40, "it travels between machines as it lies in memory");

// Accepts connections and reads their hellos. Silent connections do not block it: many may be open
// at once, each for a limited time.
class Handshake {
 public:
  // Borrows the listener.
  Handshake(const LinkSocket& listener, std::array<std::byte, 16> secret)
      : listener_(listener), secret_(secret) {}

  struct Arrival {
    LinkSocket socket;
    Hello hello;
  };
  // Returns the next connection that sent the right secret; answers `unauthorized` to a wrong one.
  // Returns nullopt when one of `watched` is readable or closed.
  Result<std::optional<Arrival>> next(const std::vector<int>& watched, const LinkWait& wait);

 private:
  struct Visitor {
    LinkSocket socket;
    std::chrono::steady_clock::time_point until;
    std::array<std::byte, sizeof(Hello)> bytes{};
    std::size_t have = 0;
  };
  // Returns false if the connection must be dropped.
  bool listen_to(Visitor& visitor);
  bool knows_the_secret(const Hello& hello) const;

  const LinkSocket& listener_;
  const std::array<std::byte, 16> secret_;
  std::deque<Visitor> visitors_;
};

// Sends or receives the answer to a hello: accepted, or the error.
Result<> send_verdict(const LinkSocket& socket, const Result<>& verdict, const LinkWait& wait);
Result<> receive_verdict(const LinkSocket& socket, const LinkWait& wait);

}  // namespace cairn
