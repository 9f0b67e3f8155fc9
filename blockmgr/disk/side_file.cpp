#include "blockmgr/disk/side_file.hpp"

#include <cstring>
#include <string>
#include <system_error>

#include "base/durable_file.hpp"
#include "base/hash.hpp"
#include "base/mapped_data.hpp"
#include "blockmgr/disk/index_file.hpp"
#include "transport/io/slot_file.hpp"

namespace cairn {
namespace {

namespace fs = std::filesystem;

struct SideFileHead {
  std::array<char, 8> magic{};
  std::uint64_t version = 0;
  std::uint64_t file_id = 0;
  std::uint64_t checksum = 0;  // of the bytes after the head
};
static_assert(sizeof(SideFileHead) == 32);

}  // namespace

Result<> write_side_file(const SideFile& file, const SideFileKind& kind,
                         std::span<const std::byte> contents) {
  const fs::path path = beside_slot_file(file.slot_file, kind.name);
  if (contents.empty()) {
    std::error_code failure;
    fs::remove(path, failure);
    if (failure) return Error{ErrorCode::io_error, path.string() + ": " + failure.message()};
    return {};
  }
  const SideFileHead head{.magic = kind.magic,
                          .version = kind.version,
                          .file_id = file.file_id,
                          .checksum = hash_bytes(contents, 0)};
  std::vector<std::byte> bytes(sizeof(head) + contents.size());
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::memcpy(bytes.data() + sizeof(head), contents.data(), contents.size());
  return write_durably(path, bytes);
}

Result<std::vector<std::byte>> read_side_file(const SideFile& file, const SideFileKind& kind) {
  auto mapped = MappedData::open(beside_slot_file(file.slot_file, kind.name), {});
  if (!mapped) return std::move(mapped).error();
  const std::span<const std::byte> bytes = mapped->bytes();
  SideFileHead head;
  const bool fits = bytes.size() >= sizeof(head) && bytes.size() - sizeof(head) <= kind.max_bytes;
  if (fits) std::memcpy(&head, bytes.data(), sizeof(head));
  const bool is_whole = fits && head.magic == kind.magic && head.version == kind.version &&
                        head.file_id == file.file_id &&
                        head.checksum == hash_bytes(bytes.subspan(sizeof(head)), 0);
  if (!is_whole) return damaged_side_file(file, kind);
  const auto contents = bytes.subspan(sizeof(head));
  return std::vector<std::byte>(contents.begin(), contents.end());
}

Error damaged_side_file(const SideFile& file, const SideFileKind& kind) {
  return {ErrorCode::checksum_mismatch, beside_slot_file(file.slot_file, kind.name).string() +
                                            " is damaged, or of another version or slot file"};
}

void remove_side_file(const fs::path& slot_file, const SideFileKind& kind) {
  const fs::path path = beside_slot_file(slot_file, kind.name);
  std::error_code ignored;
  fs::remove(path, ignored);
  fs::remove(path.string() + ".new", ignored);  // left by an interrupted write
}

}  // namespace cairn
