#pragma once

#include <memory>
#include <utility>

namespace cairn::http {

class Mailbox;

// What a connection has asked for, to be given exactly once, from any thread, whenever; harmless
// where the connection or the server is gone by then. One that is destroyed uncalled says so to the
// connection, which answers 500.
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
  // A second answer is a broken invariant.
  void operator()(T value);

 private:
  void drop() noexcept;

  std::shared_ptr<Mailbox> mailbox_;  // null once called
};

}  // namespace cairn::http
