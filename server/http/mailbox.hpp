#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "server/http/inbox.hpp"

namespace cairn::http {

class Connection;

// Where the answers to one connection's questions arrive, also after its end. It brings one that is
// given while the connection is at work at once, and any other through the thread's inbox: so
// nothing of a handler's is ever destroyed while it calls.
class Mailbox {
 public:
  Mailbox(std::shared_ptr<Inbox> inbox, Connection& connection)
      : inbox_(std::move(inbox)), connection_(&connection) {}

  // From any thread. Nothing: the question was dropped unanswered.
  template <class T>
  static void bring(std::shared_ptr<Mailbox> to, std::optional<T> value) noexcept;
  // The connection is to make room for another, unless it has something to do by then.
  static void give_way(std::shared_ptr<Mailbox> to) noexcept;

  // The connection's own:
  // An answer could not be brought for want of memory.
  bool has_lost_one() const { return lost_.load(std::memory_order_relaxed); }
  void close() { connection_ = nullptr; }

 private:
  const std::shared_ptr<Inbox> inbox_;
  Connection* connection_;  // used on its thread only; null: it is gone
  std::atomic<bool> lost_{false};
};

}  // namespace cairn::http
