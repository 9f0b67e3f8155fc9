#include "memory/region.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "memory/exported_memory.hpp"
#include "memory/mapping.hpp"

namespace cairn {

Result<RegionView> RegionView::view(Part part) const {
  // Written so that no sum can overflow.
  if (part.offset_bytes > size_bytes_ || part.size_bytes > size_bytes_ - part.offset_bytes) {
    return Error{ErrorCode::impossible, std::to_string(part.size_bytes) + " bytes at offset " +
                                            std::to_string(part.offset_bytes) +
                                            " do not lie inside a region of " +
                                            std::to_string(size_bytes_) + " bytes"};
  }
  RegionView cut = *this;
  cut.size_bytes_ = part.size_bytes;
  if (data_ != nullptr) cut.data_ = data_ + part.offset_bytes;
  if (kind_ == StorageKind::disk) cut.file_offset_bytes_ = file_offset_bytes_ + part.offset_bytes;
  return cut;
}

Region Region::adopt(Parts parts, std::unique_ptr<RegionBacking> backing) {
  Region region;
  region.whole_.kind_ = parts.kind;
  region.whole_.device_id_ = parts.device_id;
  region.whole_.data_ = parts.data;
  region.whole_.size_bytes_ = parts.size_bytes;
  (parts.kind == StorageKind::disk ? region.whole_.fd_ : region.shared_fd_) = parts.fd;
  region.backing_ = std::move(backing);
  return region;
}

Result<Region> Region::system(std::uint64_t size_bytes) {
  CAIRN_TRY(check_region_size("system memory", size_bytes));
  void* const data =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return Error{ErrorCode::no_capacity,
                 "no " + std::to_string(size_bytes) +
                     " bytes of system memory: " + std::generic_category().message(errno)};
  }
  auto mapping = std::make_unique<Mapping>(data, size_bytes);
  const Parts parts{
      .kind = StorageKind::system, .data = static_cast<std::byte*>(data), .size_bytes = size_bytes};
  return adopt(parts, std::move(mapping));
}

Result<ExportedMemory> Region::share() const {
  if (empty()) return Error{ErrorCode::impossible, "there is no memory to share"};
  return backing_->share(*this);
}

Result<bool> Region::let_go(std::span<const RegionView::Part> parts) {
  if (empty()) return false;
  return backing_->let_go(parts);
}

Result<ExportedMemory> RegionBacking::share(const Region& region) const {
  if (region.shared_fd() < 0) {
    return Error{ErrorCode::impossible, std::string(to_string(region.kind())) +
                                            " memory of this kind cannot be mapped by others"};
  }
  struct stat file {};
  if (::fstat(region.shared_fd(), &file) != 0) {
    return Error{ErrorCode::io_error, "fstat: " + std::generic_category().message(errno)};
  }
  // A duplicate, so that it can be passed on, and closed, after the region is destroyed.
  FileDescriptor descriptor(::fcntl(region.shared_fd(), F_DUPFD_CLOEXEC, 0));
  if (!descriptor) {
    return Error{ErrorCode::io_error,
                 "fcntl(F_DUPFD_CLOEXEC): " + std::generic_category().message(errno)};
  }
  return ExportedMemory{
      .kind = ExportedMemory::Kind::shm,
      .path = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(region.shared_fd()),
      .inode = file.st_ino,
      .size_bytes = region.size_bytes(),
      .file = std::make_shared<const FileDescriptor>(std::move(descriptor))};
}

}  // namespace cairn
