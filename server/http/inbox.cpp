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
  // The system gives the number of an ended thread to a new one.
  thread_ = std::thread::id();
}

}  // namespace cairn::http
