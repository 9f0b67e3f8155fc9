#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/file_descriptor.hpp"

namespace cairn {

// Open files sent with a message over a Unix socket. The receiver gets its own descriptors,
// whatever its permissions.
using PassedFiles = std::vector<std::shared_ptr<const FileDescriptor>>;
// Per message: one for each tier's memory, and some spare.
inline constexpr std::size_t kMaxPassedFiles = 8;

// Control data of a msghdr (SCM_RIGHTS, unix(7)). Must outlive the sendmsg or recvmsg.
class FileControl {
 public:
  // The files are sent with the first byte. At most kMaxPassedFiles.
  void attach(msghdr& message, const PassedFiles& files);

  // Makes room to receive files. Pass MSG_CMSG_CLOEXEC to recvmsg.
  void make_room(msghdr& message);
  // Appends the files that recvmsg received; closes any beyond kMaxPassedFiles.
  static void take(const msghdr& message, PassedFiles& files);

 private:
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMaxPassedFiles * sizeof(int))> bytes_{};
};

}  // namespace cairn
