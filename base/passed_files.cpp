#include "base/passed_files.hpp"

#include <cstring>

#include "base/assert.hpp"

namespace cairn {

void FileControl::attach(msghdr& message, const PassedFiles& files) {
  CAIRN_ASSERT(files.size() <= kMaxPassedFiles, "too many files for one message");
  if (files.empty()) return;
  message.msg_control = bytes_.data();
  message.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
  cmsghdr* const part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
  for (std::size_t i = 0; i < files.size(); ++i) {
    const int fd = files[i]->get();
    std::memcpy(CMSG_DATA(part) + i * sizeof fd, &fd, sizeof fd);
  }
}

void FileControl::make_room(msghdr& message) {
  message.msg_control = bytes_.data();
  message.msg_controllen = bytes_.size();
}

void FileControl::take(const msghdr& message, PassedFiles& files) {
  msghdr received = message;  // CMSG_NXTHDR takes no const pointer
  for (cmsghdr* part = CMSG_FIRSTHDR(&received); part != nullptr;
       part = CMSG_NXTHDR(&received, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      FileDescriptor file(fd);
      if (files.size() == kMaxPassedFiles) continue;
      files.push_back(std::make_shared<const FileDescriptor>(std::move(file)));
    }
  }
}

}  // namespace cairn
