#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "client/answer.hpp"

struct ssl_st;

namespace cairn::client {

// What a client proves a server with, and itself; PEM files.
struct TlsFiles {
  std::string authority = {};  // who may have signed the server's certificate; empty: the system's
  std::string certificate = {};  // the client's own, with its chain; empty: none
  std::string key = {};          // of that
  bool any_certificate = false;  // the server need not prove itself
};

// TLS 1.2 or later over a connected, blocking socket, which it borrows. One thread at a time.
class TlsChannel {
 public:
  struct Setup {
    int fd = -1;
    std::string host;  // whose certificate it must be: a name or an address
    const TlsFiles& files;
  };
  // Shakes hands. kNotConnected where the files cannot be used or the server is not who it should
  // be.
  static Answer<TlsChannel> open(const Setup& setup);

  ~TlsChannel();
  TlsChannel(TlsChannel&& other) noexcept = default;
  TlsChannel& operator=(TlsChannel&& other) noexcept = default;

  // A part of the first piece.
  Answer<std::size_t> send(const iovec& piece);
  // Waits for at least one byte; 0 is the end of the stream.
  Answer<std::size_t> receive(const iovec& room);
  // There are bytes that were received and not asked for.
  bool has_more() const;

 private:
  struct Free {
    void operator()(ssl_st* session) const;
  };
  explicit TlsChannel(ssl_st* session) : session_(session) {}
  ClientError failure(const std::string& what, int result);

  std::unique_ptr<ssl_st, Free> session_;
  bool broken_ = false;  // after an error nothing more may be said
};

}  // namespace cairn::client
