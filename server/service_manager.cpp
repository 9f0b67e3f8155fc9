#include "server/service_manager.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>

#include "base/environment.hpp"
#include "base/file_descriptor.hpp"

namespace cairn {
namespace {

std::optional<std::uint64_t> number_from(const std::string& text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

ServiceManager ServiceManager::from_environment() {
  ServiceManager manager;
  manager.socket_path_ = variable("NOTIFY_SOCKET");
  const auto period_us = number_from(variable("WATCHDOG_USEC"));
  const auto process = number_from(variable("WATCHDOG_PID"));
  const bool is_for_us = !process || *process == static_cast<std::uint64_t>(::getpid());
  if (!manager.socket_path_.empty() && period_us && *period_us > 0 && is_for_us) {
    manager.watchdog_period_ =
        std::chrono::milliseconds(std::max<std::uint64_t>(*period_us / 1000, 2));
  }
  return manager;
}

void ServiceManager::send(std::string_view state) const {
  sockaddr_un address{};
  if (socket_path_.empty() || socket_path_.size() >= sizeof address.sun_path) return;
  address.sun_family = AF_UNIX;
  std::copy(socket_path_.begin(), socket_path_.end(), address.sun_path);
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_path_.size());
  const FileDescriptor fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return;
  // Ignores an error: the listener has gone, and nobody else needs to know.
  (void)::sendto(fd.get(), state.data(), state.size(), MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&address), size);
}

}  // namespace cairn
