#include "server/http/held_answers.hpp"

#include "server/http/connection.hpp"

namespace cairn::http {

void HeldAnswers::add(std::shared_ptr<Connection> connection, TimePoint now) {
  if (held_.empty()) since_ = now;
  held_.push_back(std::move(connection));
}

void HeldAnswers::release() {
  // A connection may begin its next request, find answers due, and call this again.
  if (!leaving_.empty()) return;
  leaving_.swap(held_);
  for (const auto& connection : leaving_) connection->send_held();
  leaving_.clear();
}

}  // namespace cairn::http
