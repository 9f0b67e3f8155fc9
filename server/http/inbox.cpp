#include "server/http/inbox.hpp"

#include <boost/asio/post.hpp>
#include <utility>

namespace cairn::http {

void Inbox::post(UniqueFunction<void()> task) {
  MutexLock lock(mutex_);
  if (io_ != nullptr) boost::asio::post(*io_, std::move(task));
}

void Inbox::close() {
  MutexLock lock(mutex_);
  io_ = nullptr;
  // The system may reuse the id of an ended thread.
  thread_ = std::thread::id();
}

}  // namespace cairn::http
