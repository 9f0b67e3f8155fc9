#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/passed_files.hpp"

namespace cairn::http::testing {

struct ClientResponse {
  unsigned status = 0;
  std::string head;  // status line and fields, with the empty line
  std::string body;
  bool complete = false;  // false: the connection ended too early
  PassedFiles files;      // received by its end

  // The value of a field, whose name may be in any case; nullopt if there is none.
  std::optional<std::string> field(std::string_view name) const;
};

inline constexpr std::string_view kGet = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

// A plain blocking client. A wait ends after 20 s, as if the connection had ended.
class SocketClient {
 public:
  static SocketClient tcp(std::uint16_t port);
  static SocketClient local(const std::string& path);

  bool connected() const { return static_cast<bool>(fd_); }
  // Returns false if the server has closed the connection.
  bool send(std::string_view bytes, PassedFiles files = {});
  // The next response. A response to HEAD has no body.
  ClientResponse receive(bool to_head = false);
  // The next `bytes` bytes, or fewer if the connection ends first.
  std::string receive_bytes(std::size_t bytes);
  // Returns true once the server has closed, false if it sends something instead.
  bool closed_by_server();
  void shutdown_send();
  void close() { fd_.reset(); }
  // Receives little at a time, so that the server's writes have to wait.
  void shrink_receive_buffer();

 private:
  bool fetch();  // reads more into unread_

  FileDescriptor fd_;
  std::string unread_;
  PassedFiles arrived_;
};

}  // namespace cairn::http::testing
