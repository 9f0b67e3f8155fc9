#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "client/socket.hpp"
#include "tests/e2e/support/rest.hpp"

namespace cairn::e2e {

// A connection on which a test sends any bytes. The destructor closes it.
class RawConnection {
 public:
  explicit RawConnection(const client::Endpoint& endpoint);

  // Returns false if the server has closed. Files can be passed over a Unix socket only.
  bool send(std::string_view bytes, PassedFiles files = {});
  // The next reply; status 0 if none comes.
  Reply receive();
  // The next bytes, at least one; empty if the server closes.
  std::string receive_some();
  // All bytes until the server closes.
  std::string receive_to_end();
  void close() { socket_.reset(); }

 private:
  std::optional<client::Socket> socket_;
};

// A request's head. `fields` are header lines without their line ends.
std::string head_text(std::string_view method, std::string_view target,
                      const std::vector<std::string>& fields);

}  // namespace cairn::e2e
