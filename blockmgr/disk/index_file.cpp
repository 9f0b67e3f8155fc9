#include "blockmgr/disk/index_file.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/file_error.hpp"
#include "base/hash.hpp"

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kVersion = 6;

std::uint64_t checksum_of(const IndexFileHead& head) {
  constexpr std::size_t kFrom = sizeof(head.magic) + sizeof(head.checksum);
  return hash_bytes(
      std::as_bytes(std::span(&head, 1)).first(offsetof(IndexFileHead, ending)).subspan(kFrom), 0);
}

}  // namespace

void set_checksum(IndexFileHead& head) {
  head.version = kVersion;
  head.checksum = checksum_of(head);
}

std::optional<IndexFileHead> checked_head(std::span<const std::byte> bytes,
                                          const IndexFileHead& expected) {
  IndexFileHead head;
  if (bytes.size() < sizeof(head)) return std::nullopt;
  std::memcpy(&head, bytes.data(), sizeof(head));
  const bool right = head.magic == expected.magic && head.version == kVersion &&
                     head.checksum == checksum_of(head) && head.file_id == expected.file_id;
  if (!right) return std::nullopt;
  return head;
}

Error index_file_failure(const fs::path& path, const char* what) {
  const int number = errno;
  return {file_error_code(number),
          path.string() + " cannot be " + what + ": " + std::generic_category().message(number)};
}

Result<> write_index_file(int fd, std::span<const std::byte> bytes, std::uint64_t at,
                          const fs::path& path) {
  while (!bytes.empty()) {
    const ::ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return index_file_failure(path, "written");
    at += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

}  // namespace cairn
