#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/answer.hpp"
#include "client/endpoint.hpp"
#include "client/socket.hpp"

namespace cairn::client {

struct HttpOptions {
  // The longest time without a byte sent or received, connecting included.
  std::uint32_t timeout_ms = 60'000;
  std::string bearer_token = {};  // empty: no Authorization field
  TlsFiles tls = {};              // for https://
};

struct HttpHeader {
  std::string_view name;
  std::string_view value;
};

// A request to send. Borrows everything.
struct HttpRequest {
  std::string_view method = "GET";
  std::string_view target = "/";
  std::span<const HttpHeader> headers = {};
  std::span<const std::span<const std::byte>> body = {};  // sent end to end, without copying
  PassedFiles files = {};  // sent with the request; over a Unix socket only
  // Takes the body of a 2xx as it arrives, for bodies without an end. Once it returns false, the
  // connection is closed and the request is done. Null: the body is collected.
  const std::function<bool(std::string_view)>* take_text = nullptr;
};

struct HttpResponse {
  unsigned status = 0;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;            // empty if the body was read into the caller's room
  std::size_t room_bytes = 0;  // bytes of the body in that room
  PassedFiles files = {};      // sent with the response

  // The first header of that name, in any case; empty if there is none.
  std::string_view header(std::string_view name) const;
};

// Blocking HTTP/1.1 over one kept-alive connection, opened on first use. Not thread-safe.
class HttpClient {
 public:
  // Limit of a body collected in a string. A body read into the caller's room may be longer.
  static constexpr std::size_t kMaxTextBytes = std::size_t{256} << 20U;

  explicit HttpClient(Endpoint endpoint, HttpOptions options = {});

  // Sends the request and waits for the response, whatever its status. The body of a 2xx is read
  // straight into `room`, unless that is empty; kBadAnswer if it does not fit. If the kept-alive
  // connection turns out closed, a new one is opened before anything is sent. If a kept-alive
  // connection closes before a byte of the response, an idempotent request is sent once more.
  Answer<HttpResponse> request(const HttpRequest& request,
                               std::span<const std::span<std::byte>> room = {});

  // Closes the connection; the next request opens another.
  void close() { socket_.reset(); }

 private:
  Answer<> connect();
  Answer<HttpResponse> exchange(const HttpRequest& request,
                                std::span<const std::span<std::byte>> room);

  Endpoint endpoint_;
  HttpOptions options_;
  std::optional<Socket> socket_;
  std::vector<std::byte> buffer_;
};

}  // namespace cairn::client
