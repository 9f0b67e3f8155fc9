#pragma once

#include <sys/types.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/unique_function.hpp"
#include "transport/store/wire_address.hpp"

namespace cairn {

// A connection to a node or a server, plain or with TLS. Only for its io_context's thread. After
// close(), pending calls end with operation_aborted and no longer touch the caller's memory. But
// asio's TLS still uses the wire then, so each callback must own the wire.
class Wire {
 public:
  using Ended = UniqueFunction<void(boost::system::error_code, std::size_t bytes)>;

  virtual ~Wire() = default;
  virtual void connect(const WireAddress& address,
                       UniqueFunction<void(boost::system::error_code)> done) = 0;
  // Reads at least one byte.
  virtual void read_some(std::vector<boost::asio::mutable_buffer> into, Ended ended) = 0;
  // At least this many bytes will arrive, so that a waiting read need not wake for each segment. 0:
  // unknown.
  virtual void expect(std::size_t bytes) = 0;
  virtual void write_some(std::vector<boost::asio::const_buffer> from, Ended ended) = 0;
  virtual void close() = 0;
};

// `tls`: null for a plain connection; must outlive the wire.
std::shared_ptr<Wire> make_wire(boost::asio::io_context& io, boost::asio::ssl::context* tls);
// Only connects to Unix sockets whose file and whose listener belong to one of these users.
// Otherwise connect() fails with no_permission before any byte is sent.
std::shared_ptr<Wire> make_unix_wire(boost::asio::io_context& io, std::vector<uid_t> owners);

// An `unavailable` error that names the address, the operation and the reason.
Error connection_lost(const WireAddress& address, std::string_view what,
                      const boost::system::error_code& why);

// Error: malformed or not_found if a file cannot be used.
Result<std::unique_ptr<boost::asio::ssl::context>> make_wire_tls(const WireTls& tls);

// Removes the first `bytes` bytes from the buffers.
template <class Buffer>
void drop_front(std::vector<Buffer>& buffers, std::size_t bytes) {
  std::size_t whole = 0;
  while (whole < buffers.size() && bytes >= buffers[whole].size()) {
    bytes -= buffers[whole++].size();
  }
  buffers.erase(buffers.begin(), buffers.begin() + static_cast<std::ptrdiff_t>(whole));
  if (bytes > 0) buffers.front() += bytes;
}

}  // namespace cairn
