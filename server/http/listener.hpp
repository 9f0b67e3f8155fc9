#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/basic_stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/file_descriptor.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_function.hpp"
#include "server/http/stream.hpp"
#include "server/http/unix_access.hpp"

namespace cairn::http {

struct ListeningSocket {
  FileDescriptor fd;
  int family = 0;
  std::uint16_t port = 0;  // the actual port; TCP only
};

// `host` is a name or an address. Uses the first address that it can listen on.
Result<ListeningSocket> listen_tcp(const std::string& host, std::uint16_t port);

// A Unix socket and its file, which the destructor removes. The file's mode depends on `access`.
// listen() replaces the socket of a dead server; a live server's socket, or another file, is an
// error.
class UnixSocketFile {
 public:
  static Result<UnixSocketFile> listen(const std::string& path, const UnixAccess& access);
  UnixSocketFile(UnixSocketFile&&) = default;
  ~UnixSocketFile();

  ListeningSocket take_socket() { return std::move(socket_); }

 private:
  UnixSocketFile(std::string path, ListeningSocket socket);

  std::string path_;  // empty once moved from
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;  // do not remove another server's file at our path
  ListeningSocket socket_;
};

// Accepts connections on one network thread and hands them out.
class Listener {
 public:
  // Returns false if there is no room yet. The listener then offers the same connection again soon,
  // before any other.
  using Taker = UniqueFunction<bool(Peer&)>;
  Listener(boost::asio::io_context& io, ListeningSocket socket, Taker taker, Logger& log);
  // Waits for connections unless it already does. Call it periodically: accepting stops when file
  // descriptors or memory run out.
  void resume();
  void close();

 private:
  void wait();
  void accept_waiting();
  bool hand_over(Peer peer);
  void pause();

  using Executor = boost::asio::io_context::executor_type;
  const int family_;
  boost::asio::posix::basic_stream_descriptor<Executor> socket_;
  bool waits_ = false;
  std::optional<Peer> held_;  // waits for room
  boost::asio::basic_waitable_timer<std::chrono::steady_clock,
                                    boost::asio::wait_traits<std::chrono::steady_clock>, Executor>
      pause_;
  Taker taker_;
  Logger& log_;
};

}  // namespace cairn::http
