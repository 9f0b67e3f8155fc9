#include "server/http/http_answer.hpp"

#include <optional>

#include "base/assert.hpp"
#include "base/thread.hpp"
#include "server/http/connection.hpp"
#include "server/http/mailbox.hpp"

namespace cairn::http {

template <class T>
void Mailbox::bring(std::shared_ptr<Mailbox> to, std::optional<T> value) noexcept {
  Mailbox& mailbox = *to;
  if (mailbox.inbox_->on_thread()) {
    Connection* const connection = mailbox.connection_;
    if (connection == nullptr) return;
    if (connection->running_) {
      if (!guarded("answer", [&] { connection->take_answer(std::move(value)); }))
        mailbox.lost_ = true;
      return;
    }
  }
  // If memory runs out here, expire() closes the connection.
  const std::shared_ptr<Mailbox> kept = to;
  const bool posted = guarded("answer", [&] {
    kept->inbox_->post([to = std::move(to), value = std::move(value)]() mutable {
      if (to->connection_ == nullptr) return;
      const auto alive = to->connection_->shared_from_this();
      const bool taken = guarded("answer", [&] {
        if (alive->take_answer(std::move(value))) alive->run();
      });
      if (!taken) alive->close();
    });
  });
  if (!posted) kept->lost_ = true;
}

void Mailbox::yield(std::shared_ptr<Mailbox> to) noexcept {
  const std::shared_ptr<Mailbox> kept = to;
  guarded("connection", [&] {
    kept->inbox_->post([to = std::move(to)] {
      if (to->connection_ == nullptr) return;
      const auto alive = to->connection_->shared_from_this();
      alive->yield();
    });
  });
}

template <class T>
void Answer<T>::operator()(T value) {
  CAIRN_ASSERT(mailbox_ != nullptr, "a request would be answered twice");
  Mailbox::bring<T>(std::move(mailbox_), std::move(value));
}

template <class T>
void Answer<T>::drop() noexcept {
  Mailbox::bring<T>(std::move(mailbox_), std::nullopt);
}

template class Answer<Response>;
template class Answer<Result<std::span<const iovec>>>;

}  // namespace cairn::http
