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

// A connection to a node or a server, plain or with TLS. For the thread of its io_context. What is
// under way when it is closed ends with operation_aborted and touches no memory of the caller's any
// more, but asio's TLS looks at the wire itself once more: what is called at an end owns the wire.
class Wire {
 public:
  using Ended = UniqueFunction<void(boost::system::error_code, std::size_t bytes)>;

  virtual ~Wire() = default;
  virtual void connect(const WireAddress& address,
                       UniqueFunction<void(boost::system::error_code)> done) = 0;
  // At least a byte.
  virtual void read_some(std::vector<boost::asio::mutable_buffer> into, Ended ended) = 0;
  // So many bytes are to come, at least: a read that waits need not be woken for each segment of
  // them. 0 where that is not known.
  virtual void expect(std::size_t bytes) = 0;
  virtual void write_some(std::vector<boost::asio::const_buffer> from, Ended ended) = 0;
  virtual void close() = 0;
};

// `tls`: null for a plain one; outlives it.
std::shared_ptr<Wire> make_wire(boost::asio::io_context& io, boost::asio::ssl::context* tls);
// To Unix sockets of these users alone: both who owns the socket's file and who listens is one of
// them, or connecting fails with permission_denied before a byte is sent.
std::shared_ptr<Wire> make_unix_wire(boost::asio::io_context& io, std::vector<uid_t> owners);

// unavailable: what was being done with whom, and why it ended.
Error connection_lost(const WireAddress& address, std::string_view what,
                      const boost::system::error_code& why);

// unavailable where a file cannot be used.
Result<std::unique_ptr<boost::asio::ssl::context>> make_wire_tls(const WireTls& tls);

// What is left of the buffers when so many bytes of them are done.
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
