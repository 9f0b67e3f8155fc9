#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "client/answer.hpp"

struct ssl_st;

namespace cairn::client {

// PEM files: how the client checks the server, and what it presents itself.
struct TlsFiles {
  std::string authority = {};    // accepted CAs of the server's certificate; empty: the system's
  std::string certificate = {};  // the client's own, with its chain; empty: none
  std::string key = {};          // of that certificate
  bool any_certificate = false;  // accept any server certificate
};

// TLS 1.2 or later over a connected, blocking socket, which it borrows. Not thread-safe.
class TlsChannel {
 public:
  struct Setup {
    int fd = -1;
    std::string host;  // the name or address that the server's certificate must have
    const TlsFiles& files;
  };
  // Does the handshake. Returns kNotConnected if a file cannot be used or the server's certificate
  // is not accepted.
  static Answer<TlsChannel> open(const Setup& setup);

  ~TlsChannel();
  TlsChannel(TlsChannel&& other) noexcept = default;
  TlsChannel& operator=(TlsChannel&& other) noexcept = default;

  // Sends a part of the piece; returns its length.
  Answer<std::size_t> send(const iovec& piece);
  // Waits for at least one byte. Returns 0 at the end of the stream.
  Answer<std::size_t> receive(const iovec& room);
  // Whether received bytes wait to be read.
  bool has_more() const;

 private:
  struct Free {
    void operator()(ssl_st* session) const;
  };
  explicit TlsChannel(ssl_st* session) : session_(session) {}
  ClientError failure(const std::string& what, int result);

  std::unique_ptr<ssl_st, Free> session_;
  bool broken_ = false;  // after an error nothing more may be sent
};

}  // namespace cairn::client
