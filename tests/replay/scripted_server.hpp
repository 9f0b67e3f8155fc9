#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "client/endpoint.hpp"

namespace cairn::replay_test {

struct ReceivedRequest {
  std::size_t connection = 0;  // the connection's number, from 0
  std::string method;
  std::string target;
  std::string head;  // the request line and the fields, as sent
  std::string body;
};

// The exact bytes to send, each piece in its own packet.
struct ScriptedAnswer {
  std::vector<std::string> pieces;
  bool close = false;  // after the last piece
};

// A whole response with a Content-Length.
ScriptedAnswer answer(unsigned status, std::string body,
                      std::string_view content_type = "application/json",
                      std::string_view more_headers = "");

// A socket server in the test's process that sends what `handle` returns. All it knows of HTTP is
// where a request with a Content-Length ends. Several threads call `handle`, one per connection.
class ScriptedServer {
 public:
  using Handle = std::function<ScriptedAnswer(const ReceivedRequest&)>;
  explicit ScriptedServer(Handle handle);
  // On a Unix socket.
  ScriptedServer(Handle handle, const std::string& unix_path);
  ~ScriptedServer();
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  const client::Endpoint& endpoint() const { return endpoint_; }
  std::size_t connections() const;

 private:
  void accept_all();
  void serve(int fd, std::size_t number);

  Handle handle_;
  client::Endpoint endpoint_;
  int listener_ = -1;
  mutable std::mutex mutex_;
  std::set<int> open_;
  std::vector<std::jthread> threads_;
  std::jthread acceptor_;
};

}  // namespace cairn::replay_test
