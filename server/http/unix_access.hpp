#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace cairn::http {

// The users and groups that may use the server's Unix socket besides its own user and root. The
// file's mode lets them connect; the kernel's credentials of each peer decide.
struct UnixAccess {
  std::optional<gid_t> group = {};  // its members, by primary or supplementary group
  std::vector<uid_t> users = {};

  // The mode of the socket's file. Single users are only checked when they connect.
  mode_t file_mode() const;
  // Checks the process at the other end of a connected Unix socket.
  bool allows(int socket) const;
};

// The user of the process at the other end of a Unix socket; nullopt if unknown.
std::optional<uid_t> peer_user(int socket);

// Takes a name or a number. Returns not_found for an unknown name.
Result<uid_t> find_user(const std::string& name_or_number);
Result<gid_t> find_group(const std::string& name_or_number);

}  // namespace cairn::http
