#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/file_descriptor.hpp"

namespace cairn {

// Open files that go along with a message over a Unix socket: the receiver has them as its own,
// whatever it could open itself.
using PassedFiles = std::vector<std::shared_ptr<const FileDescriptor>>;
// Of one message: a tier's memory each, and room to spare.
inline constexpr std::size_t kMaxPassedFiles = 8;

// What a msghdr says of them (SCM_RIGHTS, unix(7)). Must outlive the message's sendmsg or recvmsg.
class FileControl {
 public:
  // They go with the first byte that is sent; at most kMaxPassedFiles.
  void attach(msghdr& message, const PassedFiles& files);

  // Room for those that come. recvmsg takes MSG_CMSG_CLOEXEC besides.
  void make_room(msghdr& message);
  // Appends what recvmsg brought; what would be more than kMaxPassedFiles is closed.
  static void take(const msghdr& message, PassedFiles& files);

 private:
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMaxPassedFiles * sizeof(int))> bytes_{};
};

}  // namespace cairn
