#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "client/socket.hpp"
#include "tests/e2e/support/rest.hpp"

namespace cairn::e2e {

// A connection on which a test sends what it likes. Closed with its owner.
class RawConnection {
 public:
  explicit RawConnection(const client::Endpoint& endpoint);

  // False where the server has closed. Files go along over a Unix socket only.
  bool send(std::string_view bytes, PassedFiles files = {});
  // The next answer; status 0 where none comes.
  Reply receive();
  // What comes next, at least a byte; empty where the server closes.
  std::string receive_some();
  // All until the server closes.
  std::string receive_to_end();
  void close() { socket_.reset(); }

 private:
  std::optional<client::Socket> socket_;
};

// A request's head: method, target and whole lines of fields, each without its end.
std::string head_text(std::string_view method, std::string_view target,
                      const std::vector<std::string>& fields);

}  // namespace cairn::e2e
