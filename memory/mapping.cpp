#include "memory/mapping.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <string>

namespace cairn {

Result<> check_region_size(std::string_view what, std::uint64_t size_bytes) {
  if (size_bytes >= 1 && size_bytes <= kMaxRegionBytes) return {};
  return Error{ErrorCode::out_of_range, std::string(what) + " of " + std::to_string(size_bytes) +
                                            " bytes: a region has 1 to " +
                                            std::to_string(kMaxRegionBytes)};
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Mapping::~Mapping() { ::munmap(data_, size_bytes_); }

}  // namespace cairn
