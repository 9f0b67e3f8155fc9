#include "server/http/network_thread.hpp"

#include <chrono>
#include <utility>

namespace cairn::http {
namespace {

// One timer per thread checks all timeouts: a timer per operation would cost two system calls per
// request. Timeouts are noticed at most this late.
constexpr std::chrono::milliseconds kTick{100};

}  // namespace

NetworkThread::NetworkThread(const Parts& parts)
    : shared_(parts.limits, parts.handler, parts.clock, parts.log, parts.bodies, parts.files,
              parts.tls),
      work_(shared_.io.get_executor()),
      timer_(shared_.io) {}

NetworkThread::~NetworkThread() {
  if (!thread_.joinable()) return;
  // Close the inbox first, so that nothing arrives after the loop has ended.
  shared_.inbox->post([this] {
    shared_.inbox->close();
    shared_.draining = true;
    for (const auto& listener : listeners_) listener->close();
    cut_here();
    timer_.cancel();
    work_.reset();
  });
  thread_.join();
}

void NetworkThread::listen(ListeningSocket socket, Listener::Taker taker) {
  listeners_.push_back(
      std::make_unique<Listener>(shared_.io, std::move(socket), std::move(taker), shared_.log));
}

void NetworkThread::start() {
  thread_ = Thread("network", [this](const std::stop_token&) { run(); });
}

void NetworkThread::run() {
  shared_.inbox->open_on_this_thread();
  tick();
  // An exception belongs to one connection; continue with the others.
  while (!guarded("network", [this] { shared_.io.run(); })) {
  }
}

void NetworkThread::tick() {
  turned_.store(true, std::memory_order_relaxed);
  // Rearm first, so that an exception below does not stop the timer.
  timer_.expires_after(kTick);
  timer_.async_wait([this](auto error) {
    if (!error && work_.owns_work()) tick();
  });
  for (const auto& listener : listeners_) guarded("listener", [&] { listener->resume(); });
  const TimePoint now = shared_.clock.now();
  for (auto next = shared_.connections.begin(); next != shared_.connections.end();) {
    const std::shared_ptr<Connection> connection = (next++)->second;
    connection->expire(now);  // may remove this connection, but no other
  }
}

void NetworkThread::adopt(Peer peer, std::unique_ptr<Place> place) {
  shared_.inbox->post([this, peer = std::move(peer), place = std::move(place)]() mutable {
    take(std::move(peer), std::move(place));
  });
}

void NetworkThread::take(Peer peer, std::unique_ptr<Place> place) {
  auto connection = std::make_shared<Connection>(shared_, std::move(place));
  if (shared_.draining) return;
  if (!connection->open(std::move(peer))) return;
  shared_.connections.emplace(connection.get(), connection);
  connection->start();
}

void NetworkThread::drain() {
  shared_.inbox->post([this] {
    shared_.draining = true;
    for (const auto& listener : listeners_) listener->close();
    for (auto next = shared_.connections.begin(); next != shared_.connections.end();) {
      const std::shared_ptr<Connection> connection = (next++)->second;
      connection->close_if_idle();
    }
  });
}

void NetworkThread::cut_connections() {
  shared_.inbox->post([this] { cut_here(); });
}

void NetworkThread::cut_here() {
  while (!shared_.connections.empty()) {
    const std::shared_ptr<Connection> connection = shared_.connections.begin()->second;
    connection->close();
  }
}

}  // namespace cairn::http
