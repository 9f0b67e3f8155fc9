#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>

#include "client/answer.hpp"
#include "client/http_client.hpp"
#include "client/socket.hpp"

namespace cairn::client {

// Reads one response from a socket. Use it once.
class ResponseReader {
 public:
  // Holds a head, and is large enough to receive a short body in one system call.
  static constexpr std::size_t kBufferBytes = 32 * 1024;

  // Borrows a buffer of kBufferBytes.
  ResponseReader(Socket& socket, std::span<std::byte> buffer);

  struct Expected {
    bool to_head = false;                        // the request is a HEAD: its response has no body
    std::span<const std::span<std::byte>> room;  // for the body of a 2xx
    const std::function<bool(std::string_view)>* take_text = nullptr;  // as in HttpRequest
  };
  Answer<HttpResponse> read(const Expected& expected);

  // After read(): whether the connection can take another request.
  bool keep_alive() const { return keep_alive_; }

 private:
  struct Parsing;
  Answer<> read_head(Parsing& parsing);
  Answer<> read_text_body(Parsing& parsing, const std::function<bool(std::string_view)>* take);
  Answer<std::size_t> read_body_into(std::span<const std::span<std::byte>> room,
                                     std::size_t body_bytes);
  Answer<std::size_t> fill();
  std::span<const std::byte> unread() const;

  Socket& socket_;
  std::span<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool keep_alive_ = false;
};

}  // namespace cairn::client
