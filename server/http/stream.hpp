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
#include "server/http/server_tls.hpp"

namespace cairn::http {

// Bytes moved by a network thread. Written by that thread only.
struct alignas(kLinePairBytes) TrafficCount {
  std::atomic<std::uint64_t> received{0};
  std::atomic<std::uint64_t> sent{0};

  static void add(std::atomic<std::uint64_t>& to, std::uint64_t bytes) {
    to.store(to.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  }
};
static_assert(has_pairs_of_its_own<TrafficCount>);

// An accepted connection that no network thread has taken yet.
struct Peer {
  FileDescriptor fd;
  int family = 0;  // AF_INET, AF_INET6 or AF_UNIX
};

// One connection's socket, TCP or Unix, plain or TLS: attempts that never block, and waits. Used on
// its network thread only.
class Stream {
 public:
  enum class Outcome : std::uint8_t { moved, would_block, ended };
  struct Moved {
    Outcome outcome = Outcome::ended;
    std::size_t bytes = 0;  // greater than 0 if moved
  };

  Stream(boost::asio::io_context& io, TrafficCount& traffic, const PassedFileCount& files)
      : io_(io), socket_(io), traffic_(traffic), files_(files) {}
  // Uses TLS if there is an identity, but not on Unix sockets, whose peer is known. Returns false
  // if the system refuses.
  bool open(Peer peer, const TlsIdentity* identity);
  // True until the TLS handshake is complete.
  bool in_handshake() const { return tls_ != nullptr && !tls_->is_established(); }

  // True if open files may be passed: on Unix sockets, where access is restricted.
  bool passes_files() const { return passes_files_; }
  const ConnectionEnds& ends() const { return ends_; }
  // The files that have arrived since the last call.
  PassedFiles arrived_files() { return std::exchange(arrived_, {}); }
  // True if files were closed on arrival since the last call, because their count was at its limit.
  bool files_refused() { return std::exchange(files_refused_, false); }
  // Closes the files that have arrived, and any that still come.
  void close_files() {
    arrived_.clear();
    takes_files_ = false;
  }
  void take_files() { takes_files_ = passes_files_; }
  // The files go with the next byte that is written.
  void pass_files(PassedFiles files);

  // What the kernel reports about the client, even if unread data is left.
  enum class End : std::uint8_t {
    none,
    sends_no_more,  // has shut down sending; over TCP it may have closed
    gone,           // does not receive either
  };
  End end_of_client() const;
  // True if there is unread data.
  bool has_input() const;

  // REQUIRES: at least one byte of room, or of pieces.
  Moved try_read(std::span<iovec> room);
  Moved try_write(std::span<iovec> pieces);

  // `handler(error, bytes)`. Costs no extra system call if the last such read did not fill its
  // room, because the kernel then reports the next byte by itself.
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

  // Ends waits with operation_aborted.
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
  // Tries before it waits: data may already be in the TLS session, where the socket does not report
  // it. The handler never runs inside this call.
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
  // Calls recvmsg itself, because Asio's read would close the passed files.
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
  std::unique_ptr<TlsSession> tls_;  // null: no TLS
  bool passes_files_ = false;
  bool takes_files_ = false;
  bool files_refused_ = false;
  ConnectionEnds ends_;
  PassedFiles arrived_;
  PassedFiles leaving_;
  // What to wait for after an attempt that would have blocked.
  Wants read_wants_ = Wants::read;
  Wants write_wants_ = Wants::write;
};

}  // namespace cairn::http
