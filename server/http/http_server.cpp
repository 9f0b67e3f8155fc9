#include "server/http/http_server.hpp"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <utility>
#include <vector>

#include "server/http/listener.hpp"
#include "server/http/network_thread.hpp"
#include "server/http/places.hpp"

namespace cairn::http {

class HttpServer::Impl {
 public:
  Impl(const HttpLimits& limits, std::unique_ptr<BodyMemory> bodies, Handler& handler,
       const Clock& clock, Logger& log, const TlsIdentity* tls)
      : limits_(limits),
        clock_(clock),
        log_(log),
        bodies_(std::move(bodies)),
        places_(limits.max_connections),
        unix_places_(limits.max_unix_connections),
        files_(limits.max_passed_files) {
    const NetworkThread::Parts parts{limits_, handler, clock, log, *bodies_, files_, tls};
    for (std::uint32_t i = 0; i < limits.threads; ++i) {
      threads_.push_back(std::make_unique<NetworkThread>(parts));
    }
  }

  Result<> listen(const ListenConfig& config) {
    auto tcp = listen_tcp(config.host, config.port);
    if (!tcp) return std::move(tcp).error();
    port_ = tcp->port;
    accept_from(*std::move(tcp));
    if (!config.unix_path.empty()) {
      unix_access_ = config.unix_access;
      auto local = UnixSocketFile::listen(config.unix_path, unix_access_);
      if (!local) return std::move(local).error();
      unix_file_.emplace(*std::move(local));
      accept_from(unix_file_->take_socket());
    }
    return {};
  }

  void start() {
    for (const auto& thread : threads_) thread->start();
  }

  std::uint16_t port() const { return port_; }

  HttpServerStats stats() const {
    HttpServerStats stats;
    stats.connections_open = places_.open() + unix_places_.open();
    stats.connections_accepted = accepted_.load(std::memory_order_relaxed);
    stats.connections_refused = places_.refused() + unix_places_.refused();
    for (const auto& thread : threads_) {
      stats.bytes_received += thread->traffic().received.load(std::memory_order_relaxed);
      stats.bytes_sent += thread->traffic().sent.load(std::memory_order_relaxed);
    }
    return stats;
  }

  std::vector<NamedAllocator> allocators() const { return bodies_->statistics(); }
  BodyMemory& bodies() const { return *bodies_; }
  void trim_idle() { bodies_->trim_idle(); }
  bool give_back_cached(std::string_view allocator) const {
    return bodies_->give_back_cached(allocator);
  }
  bool is_alive() {
    bool all = true;
    for (const auto& thread : threads_) all = thread->has_turned() && all;
    return all;
  }

  bool drain(std::uint32_t timeout_ms) {
    for (const auto& thread : threads_) thread->drain();
    // The system clock, because gcc 12's thread sanitizer does not see waits on the steady one.
    const auto end = std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms);
    if (places_.wait_none(end) && unix_places_.wait_none(end)) return true;
    for (const auto& thread : threads_) thread->cut_connections();
    return false;
  }

 private:
  // One thread accepts and hands out connections round-robin. With one acceptor per thread
  // (SO_REUSEPORT) the kernel would distribute by hash: a few connections may all get the same
  // thread, and a second server could join the port unnoticed.
  void accept_from(ListeningSocket socket) {
    threads_.front()->listen(std::move(socket), [this](Peer& peer) {
      if (peer.family == AF_UNIX && !unix_access_.allows(peer.fd.get())) {
        const auto user = peer_user(peer.fd.get());
        log_.warning("a user may not use the Unix socket", {{"uid", user.value_or(UINT32_MAX)}});
        return true;
      }
      auto [place, soon] = (peer.family == AF_UNIX ? unix_places_ : places_).take(clock_.now());
      if (soon) return false;
      accepted_.fetch_add(1, std::memory_order_relaxed);
      if (place == nullptr) return true;
      next_ = (next_ + 1) % threads_.size();
      threads_[next_]->adopt(std::move(peer), std::move(place));
      return true;
    });
  }

  const HttpLimits limits_;
  const Clock& clock_;
  Logger& log_;
  const std::unique_ptr<BodyMemory> bodies_;
  Places places_;
  Places unix_places_;
  const PassedFileCount files_;
  std::uint16_t port_ = 0;
  UnixAccess unix_access_;
  std::optional<UnixSocketFile> unix_file_;
  std::atomic<std::uint64_t> accepted_{0};
  std::size_t next_ = 0;  // used by the accepting thread
  std::vector<std::unique_ptr<NetworkThread>> threads_;
};

Result<> check_listen(const ListenConfig& listen) {
  // Checks the address with any free port.
  CAIRN_TRY(listen_tcp(listen.host, 0));
  if (listen.unix_path.empty()) return {};
  const auto folder = std::filesystem::absolute(listen.unix_path).parent_path();
  std::error_code ignored;
  if (std::filesystem::is_directory(folder, ignored)) return {};
  return Error{ErrorCode::impossible, "listening on unix:" + listen.unix_path +
                                          ": there is no folder '" + folder.string() + "'"};
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const ListenConfig& listen,
                                                      const HttpLimits& limits, Handler& handler,
                                                      const Clock& clock, Logger& log) {
  if (limits.threads == 0) return Error{ErrorCode::out_of_range, "threads is 0; at least 1"};
  auto bodies = BodyMemory::create(limits.body_memory_bytes);
  if (!bodies) return std::move(bodies).error();
  auto impl = std::make_unique<Impl>(limits, std::move(*bodies), handler, clock, log, listen.tls);
  CAIRN_TRY(impl->listen(listen));
  impl->start();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

std::uint16_t HttpServer::port() const { return impl_->port(); }
HttpServerStats HttpServer::stats() const { return impl_->stats(); }
std::vector<NamedAllocator> HttpServer::allocators() const { return impl_->allocators(); }
BodyMemory& HttpServer::bodies() const { return impl_->bodies(); }
bool HttpServer::is_alive() { return impl_->is_alive(); }
bool HttpServer::give_back_cached(std::string_view allocator) const {
  return impl_->give_back_cached(allocator);
}
void HttpServer::trim_idle() { impl_->trim_idle(); }
bool HttpServer::drain(std::uint32_t timeout_ms) { return impl_->drain(timeout_ms); }

}  // namespace cairn::http
