#pragma once

#include <cstddef>
#include <cstdint>
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
  // The longest time without a byte moving, connecting included.
  std::uint32_t timeout_ms = 60'000;
  std::string bearer_token = {};  // empty: no Authorization field
  TlsFiles tls = {};              // for https://
};

struct HttpHeader {
  std::string_view name;
  std::string_view value;
};

// What is sent. Only borrowed.
struct HttpRequest {
  std::string_view method = "GET";
  std::string_view target = "/";
  std::span<const HttpHeader> headers = {};
  std::span<const std::span<const std::byte>> body = {};  // sent end to end, without copying
  PassedFiles files = {};  // go along with it, over a Unix socket only
};

struct HttpResponse {
  unsigned status = 0;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;            // empty where the body went into the room given
  std::size_t room_bytes = 0;  // of the body, in the room given
  PassedFiles files = {};      // that came along with it

  // The first of that name, in any case; empty where there is none.
  std::string_view header(std::string_view name) const;
};

// Blocking HTTP/1.1 over one kept-alive connection, opened when first needed. One thread at a time.
class HttpClient {
 public:
  // The longest body that is collected in a string; into room of the caller's there is no bound.
  static constexpr std::size_t kMaxTextBytes = std::size_t{256} << 20U;

  explicit HttpClient(Endpoint endpoint, HttpOptions options = {});

  // Sends and waits for the answer, whatever its status. The body of a 2xx goes straight into
  // `room` where there is any; one that does not fit is kBadAnswer. A kept-alive connection found
  // closed is opened again before anything is sent. One that closes under a request without a byte
  // of an answer is tried once more if the method is idempotent.
  Answer<HttpResponse> request(const HttpRequest& request,
                               std::span<const std::span<std::byte>> room = {});

  // Ends the connection; the next request opens another.
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
