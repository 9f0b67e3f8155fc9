#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "base/thread.hpp"
#include "server/http/connection.hpp"

namespace cairn::http {

// What the connection gives to the handler, an Upload or a Download to be called once, from any
// thread, whenever: it holds the connection only weakly, and its thread's inbox outlives the
// server. Destroyed uncalled it says so to the connection, which waits for nothing else.
template <class T>
class Connection::Reply {
 public:
  explicit Reply(Connection& connection)
      : inbox_(connection.shared_.inbox),
        connection_(connection.weak_from_this()),
        lost_(connection.lost_reply_) {}
  Reply(Reply&&) noexcept = default;
  Reply& operator=(Reply&&) = delete;
  ~Reply() {
    if (inbox_ != nullptr) settle(std::nullopt);
  }
  void operator()(T value) {
    if (inbox_ != nullptr) settle(std::move(value));
  }

 private:
  // Where there is no memory even for that, the connection is closed.
  void settle(std::optional<T> value) noexcept {
    if (!guarded("answer", [&] { bring(std::move(value)); })) lost_->store(true);
  }
  void bring(std::optional<T> value) {
    const std::shared_ptr<Inbox> inbox = std::move(inbox_);
    if (inbox->on_thread()) {
      const auto connection = connection_.lock();
      if (connection == nullptr) return;
      if (connection->running_) {
        connection->settle(std::move(value));
        return;
      }
    }
    inbox->post([connection = std::move(connection_), value = std::move(value)]() mutable {
      const auto alive = connection.lock();
      if (alive == nullptr) return;
      const bool settled = guarded("answer", [&] {
        if (alive->settle(std::move(value))) alive->run();
      });
      if (!settled) alive->close();
    });
  }

  std::shared_ptr<Inbox> inbox_;  // empty once called
  std::weak_ptr<Connection> connection_;
  std::shared_ptr<std::atomic<bool>> lost_;
};

}  // namespace cairn::http
