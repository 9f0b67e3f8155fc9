#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "server/http/inbox.hpp"

namespace cairn::http {

class Connection;

// Receives the answers for one connection, even after its end. Delivers at once while the
// connection runs, otherwise through the thread's inbox. So nothing of a handler is destroyed
// during its own call.
class Mailbox {
 public:
  Mailbox(std::shared_ptr<Inbox> inbox, Connection& connection)
      : inbox_(std::move(inbox)), connection_(&connection) {}

  // Thread-safe. nullopt: the request was dropped without an answer.
  template <class T>
  static void bring(std::shared_ptr<Mailbox> to, std::optional<T> value) noexcept;
  // Asks the connection to make room for another, unless it is busy by then.
  static void yield(std::shared_ptr<Mailbox> to) noexcept;

  // Only for the connection:
  // True if an answer was lost for lack of memory.
  bool has_lost_one() const { return lost_.load(std::memory_order_relaxed); }
  void close() { connection_ = nullptr; }

 private:
  const std::shared_ptr<Inbox> inbox_;
  Connection* connection_;  // used on its thread only; null once it is gone
  std::atomic<bool> lost_{false};
};

}  // namespace cairn::http
