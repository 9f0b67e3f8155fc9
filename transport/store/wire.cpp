#include "transport/store/wire.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

namespace cairn {
namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;
using boost::system::error_code;

// A waiting read wakes when this many bytes, or all expected ones, are there. If it woke for each
// segment of about 64 KiB, both sides would wake each other: blocks of 2 MiB came from another
// server at 4.2 GB/s instead of 6.3 (two cores, measured in turn). The kernel uses less if its
// receive buffer is small. A peer that sends less than this within a time-out counts as silent.
constexpr std::size_t kMaxLowWater = 512 * 1024;
// For fewer bytes the system call is not worth it.
constexpr std::size_t kMinLowWater = 128 * 1024;

// Looks up a name and tries its addresses in turn.
class Connecting {
 public:
  explicit Connecting(asio::io_context& io) : resolver_(io) {}

  void connect(Tcp::socket& socket, const WireAddress& address,
               UniqueFunction<void(error_code)> done) {
    // Look-ups run one after the other. A numeric address skips them, so that it does not wait
    // behind a slow one.
    error_code is_name;
    const auto numeric = asio::ip::make_address(address.host, is_name);
    if (!is_name) {
      return socket.async_connect({numeric, address.port},
                                  [&socket, done = std::move(done)](error_code refused) mutable {
                                    if (!refused) socket.set_option(Tcp::no_delay(true), refused);
                                    done(refused);
                                  });
    }
    resolver_.async_resolve(
        address.host, std::to_string(address.port), Tcp::resolver::numeric_service,
        [&socket, done = std::move(done)](error_code failed,
                                          const Tcp::resolver::results_type& found) mutable {
          if (failed) return done(failed);
          asio::async_connect(
              socket, found,
              [&socket, done = std::move(done)](error_code refused, const Tcp::endpoint&) mutable {
                if (!refused) socket.set_option(Tcp::no_delay(true), refused);
                done(refused);
              });
        });
  }

 private:
  Tcp::resolver resolver_;
};

// Everything but connecting.
template <class Stream>
class StreamWire : public Wire {
 public:
  void read_some(std::vector<asio::mutable_buffer> into, Ended ended) override {
    stream_.async_read_some(into, std::move(ended));
  }
  void write_some(std::vector<asio::const_buffer> from, Ended ended) override {
    stream_.async_write_some(from, std::move(ended));
  }
  void expect(std::size_t) override {}
  void close() override {
    error_code ignored;
    stream_.lowest_layer().close(ignored);
  }

 protected:
  template <class... Arguments>
  explicit StreamWire(asio::io_context& io, Arguments&... arguments) : stream_(io, arguments...) {}

  Stream stream_;
};

class TcpWire final : public StreamWire<Tcp::socket> {
 public:
  explicit TcpWire(asio::io_context& io) : StreamWire(io), connecting_(io) {}

  void connect(const WireAddress& address, UniqueFunction<void(error_code)> done) override {
    connecting_.connect(stream_, address, std::move(done));
  }

  void expect(std::size_t bytes) override {
    const int low_water =
        bytes < kMinLowWater ? 1 : static_cast<int>(std::min(bytes, kMaxLowWater));
    if (low_water == low_water_) return;
    error_code ignored;  // then reads only wake more often
    stream_.set_option(asio::socket_base::receive_low_watermark(low_water), ignored);
    low_water_ = low_water;
  }

 private:
  Connecting connecting_;
  int low_water_ = 1;
};

class UnixWire final : public StreamWire<asio::local::stream_protocol::socket> {
 public:
  UnixWire(asio::io_context& io, std::vector<uid_t> owners)
      : StreamWire(io), owners_(std::move(owners)) {}

  void connect(const WireAddress& address, UniqueFunction<void(error_code)> done) override {
    if (const error_code refused = look_at(address.unix_path)) {
      return asio::post(stream_.get_executor(),
                        [done = std::move(done), refused]() mutable { done(refused); });
    }
    stream_.async_connect(address.unix_path,
                          [this, done = std::move(done)](error_code failed) mutable {
                            if (!failed && !is_owner(listener())) failed = no_permission();
                            done(failed);
                          });
  }

 private:
  static error_code no_permission() { return asio::error::no_permission; }
  bool is_owner(std::optional<uid_t> user) const {
    return user && std::ranges::find(owners_, *user) != owners_.end();
  }
  error_code look_at(const std::string& path) const {
    if (!is_socket_path(path)) return asio::error::invalid_argument;
    struct stat file {};
    if (::stat(path.c_str(), &file) != 0) return {errno, boost::system::system_category()};
    return is_owner(file.st_uid) ? error_code() : no_permission();
  }
  // The listener's user. The file may have been replaced after look_at().
  std::optional<uid_t> listener() {
    ucred who{};
    socklen_t size = sizeof who;
    if (::getsockopt(stream_.native_handle(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) {
      return std::nullopt;
    }
    return who.uid;
  }

  const std::vector<uid_t> owners_;
};

class TlsWire final : public StreamWire<asio::ssl::stream<Tcp::socket>> {
 public:
  TlsWire(asio::io_context& io, asio::ssl::context& tls) : StreamWire(io, tls), connecting_(io) {}

  void connect(const WireAddress& address, UniqueFunction<void(error_code)> done) override {
    error_code refused;
    stream_.set_verify_mode(asio::ssl::verify_peer, refused);
    stream_.set_verify_callback(asio::ssl::host_name_verification(address.host), refused);
    connecting_.connect(stream_.next_layer(), address,
                        [this, done = std::move(done)](error_code failed) mutable {
                          if (failed) return done(failed);
                          stream_.async_handshake(asio::ssl::stream_base::client, std::move(done));
                        });
  }

 private:
  Connecting connecting_;
};

Error cannot_use(std::string_view what, const std::filesystem::path& path, error_code why) {
  // Asio reports an unreadable file in its library's words; errno is clearer.
  const int number = path.empty() || ::access(path.c_str(), R_OK) == 0 ? 0 : errno;
  const std::string reason = number == 0 ? why.message() : std::generic_category().message(number);
  return {number == 0 ? ErrorCode::malformed : ErrorCode::not_found,
          std::string(what) + " '" + path.string() + "' cannot be used: " + reason};
}

}  // namespace

std::shared_ptr<Wire> make_unix_wire(asio::io_context& io, std::vector<uid_t> owners) {
  return std::make_shared<UnixWire>(io, std::move(owners));
}

std::shared_ptr<Wire> make_wire(asio::io_context& io, asio::ssl::context* tls) {
  if (tls == nullptr) return std::make_shared<TcpWire>(io);
  return std::make_shared<TlsWire>(io, *tls);
}

Error connection_lost(const WireAddress& address, std::string_view what, const error_code& why) {
  return {ErrorCode::unavailable, address.text() + ": " + std::string(what) + ": " + why.message()};
}

Result<std::unique_ptr<asio::ssl::context>> make_wire_tls(const WireTls& tls) {
  auto context = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_client);
  error_code failed;
  if (tls.ca.empty()) {
    context->set_default_verify_paths(failed);
    if (failed) return cannot_use("the system's authorities", "", failed);
  } else {
    context->load_verify_file(tls.ca.string(), failed);
    if (failed) return cannot_use(tls.section + ".ca", tls.ca, failed);
  }
  if (!tls.certificate.empty()) {
    context->use_certificate_chain_file(tls.certificate.string(), failed);
    if (failed) return cannot_use(tls.section + ".cert", tls.certificate, failed);
    context->use_private_key_file(tls.key.string(), asio::ssl::context::pem, failed);
    if (failed) return cannot_use(tls.section + ".key", tls.key, failed);
  }
  return context;
}

}  // namespace cairn
