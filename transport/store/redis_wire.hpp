#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_function.hpp"
#include "transport/store/redis_settings.hpp"

namespace cairn {

// A connection to a node, plain or with TLS. For the thread of its io_context. What is under way
// when it is closed ends with operation_aborted and touches no memory of the caller's any more, but
// asio's TLS looks at the wire itself once more: what is called at an end owns the wire.
class RedisWire {
 public:
  using Ended = UniqueFunction<void(boost::system::error_code, std::size_t bytes)>;

  virtual ~RedisWire() = default;
  virtual void connect(const RedisAddress& address,
                       UniqueFunction<void(boost::system::error_code)> done) = 0;
  // At least a byte.
  virtual void read_some(std::vector<boost::asio::mutable_buffer> into, Ended ended) = 0;
  virtual void write_some(std::vector<boost::asio::const_buffer> from, Ended ended) = 0;
  virtual void close() = 0;
};

// `tls`: null for a plain one; outlives it.
std::shared_ptr<RedisWire> make_redis_wire(boost::asio::io_context& io,
                                           boost::asio::ssl::context* tls);

// Which authorities are believed, and who this side is. unavailable where a file cannot be used.
Result<std::unique_ptr<boost::asio::ssl::context>> make_redis_tls(const RedisSettings& settings);

}  // namespace cairn
