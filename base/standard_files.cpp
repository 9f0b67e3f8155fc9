#include "base/standard_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace cairn {

void open_standard_files() noexcept {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() returns the lowest free number, which is `fd`.
    if (::open("/dev/null", O_RDWR) != fd) std::abort();
  }
}

}  // namespace cairn
