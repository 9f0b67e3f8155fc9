#pragma once

#include <sys/uio.h>

#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "server/http/file_descriptor.hpp"

namespace cairn::http {

// The bytes that a network thread has moved. Written by that thread only.
struct alignas(64) TrafficCount {
  std::atomic<std::uint64_t> received{0};
  std::atomic<std::uint64_t> sent{0};

  static void add(std::atomic<std::uint64_t>& to, std::uint64_t bytes) {
    to.store(to.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  }
};

// An accepted connection, not yet on its thread.
struct Peer {
  FileDescriptor fd;
  int family = 0;  // AF_INET, AF_INET6 or AF_UNIX
};

// One connection's socket, TCP or Unix: attempts that never block, and waits. Used on its network
// thread only.
class Stream {
 public:
  enum class Outcome : std::uint8_t { moved, would_block, ended };
  struct Moved {
    Outcome outcome = Outcome::ended;
    std::size_t bytes = 0;  // more than 0 where moved
  };

  Stream(boost::asio::io_context& io, TrafficCount& traffic) : socket_(io), traffic_(traffic) {}
  // False where the system refuses.
  bool open(Peer peer);

  // At least one byte of room, or of pieces.
  Moved try_read(std::span<iovec> room);
  Moved try_write(std::span<iovec> pieces);

  // `handler(error, bytes)`. Costs no system call of its own where the last such read did not fill
  // its room, as the kernel then tells of the next byte by itself.
  template <class Handler>
  void async_read(std::span<std::byte> room, Handler&& handler) {
    socket_.async_read_some(
        boost::asio::buffer(room.data(), room.size()),
        [this, handler = std::forward<Handler>(handler)](auto error, std::size_t bytes) mutable {
          TrafficCount::add(traffic_.received, bytes);
          handler(error, bytes);
        });
  }
  // `handler(error)`
  template <class Handler>
  void async_readable(Handler&& handler) {
    socket_.async_wait(Socket::wait_read, std::forward<Handler>(handler));
  }
  template <class Handler>
  void async_writable(Handler&& handler) {
    socket_.async_wait(Socket::wait_write, std::forward<Handler>(handler));
  }

  // Ends what is waiting with operation_aborted.
  void cancel();
  void shutdown_send();
  void close();

 private:
  using Socket = boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol,
                                                  boost::asio::io_context::executor_type>;
  Socket socket_;
  TrafficCount& traffic_;
};

}  // namespace cairn::http
