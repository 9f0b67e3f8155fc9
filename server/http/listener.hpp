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

// A socket that listens.
struct ListeningSocket {
  FileDescriptor fd;
  int family = 0;
  std::uint16_t port = 0;  // the one taken; TCP only
};

// `host` is a name or an address; the first address that can be listened on is taken.
Result<ListeningSocket> listen_tcp(const std::string& host, std::uint16_t port);

// A Unix socket whose file goes with this object, with the rights that the access takes. One of a
// dead server is replaced; that of a live one, and a file that is no socket, is an error.
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
  std::uint64_t inode_ = 0;  // another server's file at our path is not ours to remove
  ListeningSocket socket_;
};

// Accepts on one network thread and hands the connections out.
class Listener {
 public:
  // False: there is no room for it yet. It is handed over again soon, and before any other.
  using Taker = UniqueFunction<bool(Peer&)>;
  Listener(boost::asio::io_context& io, ListeningSocket socket, Taker taker, Logger& log);
  // Waits for who comes, where it does not wait already. To be called again and again: it stops
  // where there is no file descriptor or no memory to be had.
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
  std::optional<Peer> held_;  // has no room yet
  boost::asio::basic_waitable_timer<std::chrono::steady_clock,
                                    boost::asio::wait_traits<std::chrono::steady_clock>, Executor>
      pause_;
  Taker taker_;
  Logger& log_;
};

}  // namespace cairn::http
