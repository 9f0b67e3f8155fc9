#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <vector>

#include "base/thread.hpp"
#include "server/http/connection.hpp"
#include "server/http/listener.hpp"
#include "server/http/places.hpp"

namespace cairn::http {

// A thread with an event loop, and the connections on it.
class NetworkThread {
 public:
  struct Parts {
    const HttpLimits& limits;
    Handler& handler;
    const Clock& clock;
    Logger& log;
    BodyMemory& bodies;
    const PassedFileCount& files;
    const TlsIdentity* tls;  // null: no TLS
  };
  explicit NetworkThread(const Parts& parts);
  ~NetworkThread();  // cuts the remaining connections

  // Call before start().
  void listen(ListeningSocket socket, Listener::Taker taker);
  void start();  // throws std::system_error if no thread can be started

  // Thread-safe:
  void adopt(Peer peer, std::unique_ptr<Place> place);
  void drain();
  void cut_connections();
  const TrafficCount& traffic() const { return shared_.traffic; }
  // Returns true if the loop has run since the last call.
  bool has_turned() { return turned_.exchange(false, std::memory_order_relaxed); }

 private:
  void run();
  void tick();
  void take(Peer peer, std::unique_ptr<Place> place);
  void cut_here();

  using Executor = boost::asio::io_context::executor_type;
  ConnectionShared shared_;
  std::atomic<bool> turned_{false};
  std::vector<std::unique_ptr<Listener>> listeners_;
  boost::asio::executor_work_guard<Executor> work_;
  boost::asio::basic_waitable_timer<std::chrono::steady_clock,
                                    boost::asio::wait_traits<std::chrono::steady_clock>, Executor>
      timer_;
  Thread thread_;
};

}  // namespace cairn::http
