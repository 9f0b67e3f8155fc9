#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <string_view>

#include "tests/store/loopback.hpp"

namespace cairn::testing {

// The node's end of one connection, for a test that runs the io_context itself.
class ListeningNode {
 public:
  ListeningNode() = default;
  ~ListeningNode() {
    ::close(connection_);
    ::close(listening_.listener);
  }
  ListeningNode(const ListeningNode&) = delete;
  ListeningNode& operator=(const ListeningNode&) = delete;

  std::uint16_t port() const { return listening_.port; }
  void accept(boost::asio::io_context& io) {
    while (connection_ < 0) {
      io.poll();
      connection_ = ::accept(listening_.listener, nullptr, nullptr);
    }
  }
  // The number of bytes received so far.
  std::size_t received() {
    char buffer[4096];
    while (true) {
      const auto bytes = ::recv(connection_, buffer, sizeof buffer, MSG_DONTWAIT);
      if (bytes <= 0) return received_;
      received_ += static_cast<std::size_t>(bytes);
    }
  }
  // Waits until `bytes` have been received in all.
  void receive(boost::asio::io_context& io, std::size_t bytes) {
    while (received() < bytes) io.poll();
  }
  void send(boost::asio::io_context& io, std::string_view bytes) {
    while (!bytes.empty()) {
      const auto sent =
          ::send(connection_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
      io.poll();
    }
  }

 private:
  const Loopback listening_ = listen_on_loopback({.blocks = false});
  int connection_ = -1;
  std::size_t received_ = 0;
};

}  // namespace cairn::testing
