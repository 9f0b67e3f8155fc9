#pragma once

#include <sys/uio.h>

#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/cache_line.hpp"
#include "base/file_descriptor.hpp"
#include "base/passed_files.hpp"
#include "server/http/message.hpp"
#include "server/http/passed_file_count.hpp"
#include "server/http/tls.hpp"

namespace cairn::http {

// The bytes that a network thread has moved. Written by that thread only.
struct alignas(kLinePairBytes) TrafficCount {
  std::atomic<std::uint64_t> received{0};
  std::atomic<std::uint64_t> sent{0};

  static void add(std::atomic<std::uint64_t>& to, std::uint64_t bytes) {
    to.store(to.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  }
};
static_assert(has_pairs_of_its_own<TrafficCount>);

// An accepted connection, not yet on its thread.
struct Peer {
  FileDescriptor fd;
  int family = 0;  // AF_INET, AF_INET6 or AF_UNIX
};

// One connection's socket, TCP or Unix, plain or under TLS: attempts that never block, and waits.
// Used on its network thread only.
class Stream {
 public:
  enum class Outcome : std::uint8_t { moved, would_block, ended };
  struct Moved {
    Outcome outcome = Outcome::ended;
    std::size_t bytes = 0;  // more than 0 where moved
  };

  Stream(boost::asio::io_context& io, TrafficCount& traffic, const PassedFileCount& files)
      : io_(io), socket_(io), traffic_(traffic), files_(files) {}
  // Under TLS where there is an identity and the connection is not a Unix socket's, whose owner is
  // known. False where the system refuses.
  bool open(Peer peer, const TlsIdentity* identity);
  // The client has still to show that it speaks TLS.
  bool in_handshake() const { return tls_ != nullptr && !tls_->is_established(); }

  // Open files go along with the bytes: over a Unix socket, where only those connect who may.
  bool passes_files() const { return passes_files_; }
  const ConnectionEnds& ends() const { return ends_; }
  // Those that have come since the last call.
  PassedFiles arrived_files() { return std::exchange(arrived_, {}); }
  // Some were closed as they came, for want of room in the count of them, since the last call.
  bool files_refused() { return std::exchange(files_refused_, false); }
  // Those that are there, or still come, are closed at once.
  void close_files() {
    arrived_.clear();
    takes_files_ = false;
  }
  void take_files() { takes_files_ = passes_files_; }
  // These go with the next byte that is written.
  void pass_files(PassedFiles files);

  // What the kernel tells of the client, whether or not all that it sent was read.
  enum class End : std::uint8_t {
    none,
    sends_no_more,  // it has shut its sending side, or over TCP it may have closed
    gone,           // it takes nothing either
  };
  End end_of_client() const;
  // Something that was not read yet.
  bool has_input() const;

  // At least one byte of room, or of pieces.
  Moved try_read(std::span<iovec> room);
  Moved try_write(std::span<iovec> pieces);

  // `handler(error, bytes)`. Costs no system call of its own where the last such read did not fill
  // its room, as the kernel then tells of the next byte by itself.
  template <class Handler>
  void async_read(std::span<std::byte> room, Handler&& handler) {
    if (tls_ != nullptr) return read_tls(room, std::forward<Handler>(handler));
    if (passes_files_) return read_when_ready(room, std::forward<Handler>(handler));
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
    socket_.async_wait(wait_for(read_wants_), std::forward<Handler>(handler));
  }
  template <class Handler>
  void async_writable(Handler&& handler) {
    socket_.async_wait(wait_for(write_wants_), std::forward<Handler>(handler));
  }

  // Ends what is waiting with operation_aborted.
  void cancel();
  void shutdown_send();
  void close();

 private:
  using Socket = boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol,
                                                  boost::asio::io_context::executor_type>;
  using Wants = TlsSession::Wants;

  void take_files_of(const msghdr& message);
  static Socket::wait_type wait_for(Wants wants) {
    return wants == Wants::write ? Socket::wait_write : Socket::wait_read;
  }
  // What has arrived may be in the session already, where no socket tells of it: so it is tried
  // before it is waited for. The handler never runs within the call.
  template <class Handler>
  void read_tls(std::span<std::byte> room, Handler&& handler) {
    iovec piece{room.data(), room.size()};
    const Moved moved = try_read({&piece, 1});
    if (moved.outcome != Outcome::would_block) {
      boost::system::error_code error;
      if (moved.outcome == Outcome::ended) error = boost::asio::error::eof;
      boost::asio::post(io_, [handler = std::forward<Handler>(handler), error, moved]() mutable {
        handler(error, moved.bytes);
      });
      return;
    }
    async_readable([this, room, handler = std::forward<Handler>(handler)](auto error) mutable {
      if (error) return handler(error, 0);
      read_tls(room, std::move(handler));
    });
  }
  // By our own call, as Asio's would close the files that come along.
  template <class Handler>
  void read_when_ready(std::span<std::byte> room, Handler&& handler) {
    async_readable([this, room, handler = std::forward<Handler>(handler)](auto error) mutable {
      if (error) return handler(error, 0);
      iovec piece{room.data(), room.size()};
      const Moved moved = try_read({&piece, 1});
      if (moved.outcome == Outcome::would_block) return read_when_ready(room, std::move(handler));
      if (moved.outcome == Outcome::ended) error = boost::asio::error::eof;
      handler(error, moved.bytes);
    });
  }

  boost::asio::io_context& io_;
  Socket socket_;
  TrafficCount& traffic_;
  const PassedFileCount& files_;
  std::unique_ptr<TlsSession> tls_;  // null: plain
  bool passes_files_ = false;
  bool takes_files_ = false;
  bool files_refused_ = false;
  ConnectionEnds ends_;
  PassedFiles arrived_;
  PassedFiles leaving_;
  // What the last attempt that would have blocked has to wait for.
  Wants read_wants_ = Wants::read;
  Wants write_wants_ = Wants::write;
};

}  // namespace cairn::http
