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
  bool complete = false;  // false: the connection ended before it did
  PassedFiles files;      // that had come along by its end

  // The value of a field, in any case; nothing where there is none.
  std::optional<std::string> field(std::string_view name) const;
};

inline constexpr std::string_view kGet = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

// A plain blocking client. Any wait is given up after 20 s, as a connection that ended.
class SocketClient {
 public:
  static SocketClient tcp(std::uint16_t port);
  static SocketClient local(const std::string& path);

  bool connected() const { return static_cast<bool>(fd_); }
  // False where the server has closed the connection.
  bool send(std::string_view bytes, PassedFiles files = {});
  // The next response. To a HEAD there is no body.
  ClientResponse receive(bool to_head = false);
  // The next `bytes` bytes, or fewer where the connection ends before.
  std::string receive_bytes(std::size_t bytes);
  // True once the server has closed; false where it sends something instead.
  bool closed_by_server();
  void shutdown_send();
  void close() { fd_.reset(); }
  // Receives little at a time, so that the server's writes have to wait.
  void shrink_receive_buffer();

 private:
  bool fetch();  // more into unread_

  FileDescriptor fd_;
  std::string unread_;
  PassedFiles arrived_;
};

}  // namespace cairn::http::testing
