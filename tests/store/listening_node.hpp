#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <string_view>

namespace cairn::testing {

// The other end of one connection, for a test that runs this one's handlers itself.
class ListeningNode {
 public:
  ListeningNode() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::socklen_t size = sizeof address;
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    ::listen(listener_, 1);
    port_ = ntohs(address.sin_port);
  }
  ~ListeningNode() {
    ::close(connection_);
    ::close(listener_);
  }
  ListeningNode(const ListeningNode&) = delete;
  ListeningNode& operator=(const ListeningNode&) = delete;

  std::uint16_t port() const { return port_; }
  void accept(boost::asio::io_context& io) {
    while (connection_ < 0) {
      io.poll();
      connection_ = ::accept(listener_, nullptr, nullptr);
    }
  }
  // All that has come until now, and until it is so much.
  std::size_t received() {
    char buffer[4096];
    while (true) {
      const auto bytes = ::recv(connection_, buffer, sizeof buffer, MSG_DONTWAIT);
      if (bytes <= 0) return received_;
      received_ += static_cast<std::size_t>(bytes);
    }
  }
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
  int listener_ = -1;
  int connection_ = -1;
  std::uint16_t port_ = 0;
  std::size_t received_ = 0;
};

}  // namespace cairn::testing
