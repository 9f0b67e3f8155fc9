#include "memory/mapping.hpp"

#include <sys/mman.h>

#include <string>

namespace cairn {

Result<> check_region_size(std::string_view what, std::uint64_t size_bytes) {
  if (size_bytes >= 1 && size_bytes <= kMaxRegionBytes) return {};
  return Error{ErrorCode::out_of_range, std::string(what) + " of " + std::to_string(size_bytes) +
                                            " bytes: a region has 1 to " +
                                            std::to_string(kMaxRegionBytes)};
}

Mapping::~Mapping() { ::munmap(data_, size_bytes_); }

}  // namespace cairn
