#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace cairn::http {

// Who beside the server's own user and root may use its Unix socket: its file's rights let them in,
// and what the kernel says of each that connects decides. A small value.
struct UnixAccess {
  std::optional<gid_t> group = {};  // its members, whichever of their groups it is
  std::vector<uid_t> users = {};

  // The rights of the socket's file. Users are told apart by who connects only.
  mode_t file_mode() const;
  // The process at the other end of a connected Unix socket.
  bool allows(int socket) const;
};

// Of the process at the other end of a Unix socket; nothing where the kernel does not tell.
std::optional<uid_t> peer_user(int socket);

// A name or a number. not_found where this machine has no such name.
Result<uid_t> find_user(const std::string& name_or_number);
Result<gid_t> find_group(const std::string& name_or_number);

}  // namespace cairn::http
