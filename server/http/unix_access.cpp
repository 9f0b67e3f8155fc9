#include "server/http/unix_access.hpp"

#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>

namespace cairn::http {
namespace {

// Enough for one entry of the system's tables; a group's entry lists its members.
constexpr std::size_t kLineBytes = 64 * 1024;

std::optional<ucred> credentials_of(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return peer;
}

bool is_member(int socket, gid_t own_group, gid_t wanted) {
  if (own_group == wanted) return true;
  // Linux's limit per process (NGROUPS_MAX).
  std::vector<gid_t> groups(65'536);
  auto size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) != 0) return false;
  groups.resize(size / sizeof(gid_t));
  return std::ranges::find(groups, wanted) != groups.end();
}

// The highest number means "none" in system calls.
std::optional<std::uint32_t> number_from(const std::string& text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (number == std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
  return number;
}

}  // namespace

mode_t UnixAccess::file_mode() const {
  if (!users.empty()) return 0666;
  return group ? 0660 : 0600;
}

bool UnixAccess::allows(int socket) const {
  const auto peer = credentials_of(socket);
  if (!peer) return false;
  if (peer->uid == ::geteuid() || peer->uid == 0) return true;
  if (std::ranges::find(users, peer->uid) != users.end()) return true;
  return group && is_member(socket, peer->gid, *group);
}

std::optional<uid_t> peer_user(int socket) {
  const auto peer = credentials_of(socket);
  if (!peer) return std::nullopt;
  return peer->uid;
}

Result<uid_t> find_user(const std::string& name_or_number) {
  if (const auto number = number_from(name_or_number)) return *number;
  std::vector<char> line(kLineBytes);
  passwd entry{};
  passwd* found = nullptr;
  ::getpwnam_r(name_or_number.c_str(), &entry, line.data(), line.size(), &found);
  if (found != nullptr) return found->pw_uid;
  return Error{ErrorCode::not_found, "there is no user '" + name_or_number.substr(0, 64) + "'"};
}

Result<gid_t> find_group(const std::string& name_or_number) {
  if (const auto number = number_from(name_or_number)) return *number;
  std::vector<char> line(kLineBytes);
  ::group entry{};
  ::group* found = nullptr;
  ::getgrnam_r(name_or_number.c_str(), &entry, line.data(), line.size(), &found);
  if (found != nullptr) return found->gr_gid;
  return Error{ErrorCode::not_found, "there is no group '" + name_or_number.substr(0, 64) + "'"};
}

}  // namespace cairn::http
