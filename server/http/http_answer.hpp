#pragma once

#include <memory>
#include <utility>

namespace cairn::http {

class Mailbox;

// The answer to something that a connection waits for. Call it exactly once, at any time, from any
// thread. It is a no-op if the connection or the server is gone. If it is destroyed without a call,
// the connection answers 500.
template <class T>
class Answer {
 public:
  explicit Answer(std::shared_ptr<Mailbox> mailbox) : mailbox_(std::move(mailbox)) {}
  Answer(Answer&&) noexcept = default;
  Answer& operator=(Answer&& other) noexcept {
    std::swap(mailbox_, other.mailbox_);
    return *this;
  }
  ~Answer() {
    if (mailbox_ != nullptr) drop();
  }
  // REQUIRES: not called before.
  void operator()(T value);

 private:
  void drop() noexcept;

  std::shared_ptr<Mailbox> mailbox_;  // null once called
};

}  // namespace cairn::http
