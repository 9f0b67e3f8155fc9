#include "transport/io/slot_file_label.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <span>
#include <system_error>

#include "base/file_descriptor.hpp"
#include "base/file_error.hpp"
#include "base/hash.hpp"

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPageBytes = 4096;
// 1: Cairn 0.1, 2: Cairn 0.2. Raise it when the format of the slots changes: see SlotHeader.
constexpr std::uint32_t kVersion = 4;

// The format on disk, little-endian. The description follows it.
static_assert(std::endian::native == std::endian::little);
struct LabelHead {
  std::array<char, 8> magic;
  std::uint64_t checksum;  // covers everything after it, including the description
  std::uint32_t version;
  std::uint32_t file_number;
  std::uint32_t file_count;
  std::uint32_t owner_size;
  std::uint64_t file_id;
  std::uint64_t num_slots;
  std::uint64_t num_layers;
  std::uint64_t outer_dim;
  std::uint64_t page_size;
  std::uint64_t inner_dim;
  std::uint64_t dtype_width_bytes;
  std::uint64_t shapes_hash;
  std::uint64_t description_size;
  std::array<char, kMaxOwnerBytes> owner;
};
static_assert(sizeof(LabelHead) + kMaxDescriptionBytes == kPageBytes);

// Aligned, because the file may be open for direct I/O.
struct alignas(kPageBytes) Page {
  std::array<std::byte, kPageBytes> bytes{};
};

std::uint64_t checksum_of(std::span<const std::byte> page, const LabelHead& head) {
  constexpr std::size_t kFrom = sizeof(head.magic) + sizeof(head.checksum);
  return hash_bytes(page.first(sizeof(head) + head.description_size).subspan(kFrom), 0);
}

void encode(const SlotFileLabel& label, Page& page) {
  LabelHead head{};
  head.magic = kSlotFileMagic;
  head.version = kVersion;
  head.file_number = label.file_number;
  head.file_count = label.file_count;
  head.owner_size = static_cast<std::uint32_t>(std::min(label.owner.size(), kMaxOwnerBytes));
  head.file_id = label.file_id;
  head.num_slots = label.shape.num_blocks;
  head.num_layers = label.shape.num_layers;
  head.outer_dim = label.shape.outer_dim;
  head.page_size = label.shape.page_size;
  head.inner_dim = label.shape.inner_dim;
  head.dtype_width_bytes = label.shape.dtype_width_bytes;
  head.shapes_hash = label.shapes_hash;
  head.description_size = label.description.size();
  std::memcpy(head.owner.data(), label.owner.data(), head.owner_size);
  std::memcpy(page.bytes.data() + sizeof(head), label.description.data(), label.description.size());
  std::memcpy(page.bytes.data(), &head, sizeof(head));
  head.checksum = checksum_of(page.bytes, head);
  std::memcpy(page.bytes.data(), &head, sizeof(head));
}

std::optional<SlotFileLabel> decode(std::span<const std::byte> page) {
  LabelHead head;
  if (page.size() < sizeof(head)) return std::nullopt;
  std::memcpy(&head, page.data(), sizeof(head));
  const bool whole = head.magic == kSlotFileMagic && head.version == kVersion &&
                     head.owner_size <= kMaxOwnerBytes &&
                     head.description_size <= page.size() - sizeof(head) &&
                     head.checksum == checksum_of(page, head);
  if (!whole) return std::nullopt;
  SlotFileLabel label{.file_id = head.file_id,
                      .file_number = head.file_number,
                      .file_count = head.file_count,
                      .owner = std::string(head.owner.data(), head.owner_size)};
  label.shape.num_blocks = head.num_slots;
  label.shape.num_layers = head.num_layers;
  label.shape.outer_dim = head.outer_dim;
  label.shape.page_size = head.page_size;
  label.shape.inner_dim = head.inner_dim;
  label.shape.dtype_width_bytes = head.dtype_width_bytes;
  label.shapes_hash = head.shapes_hash;
  label.description.assign(reinterpret_cast<const char*>(page.data()) + sizeof(head),
                           head.description_size);
  return label;
}

// The version that wrote the page, if it differs from this one.
std::optional<std::uint32_t> other_version(std::span<const std::byte> page) {
  LabelHead head;
  if (page.size() < sizeof(head)) return std::nullopt;
  std::memcpy(&head, page.data(), sizeof(head));
  if (head.magic != kSlotFileMagic || head.version == kVersion) return std::nullopt;
  return head.version;
}

bool begins_with_magic(std::span<const std::byte> bytes) {
  const std::size_t size = std::min(bytes.size(), kSlotFileMagic.size());
  return size > 0 && std::memcmp(bytes.data(), kSlotFileMagic.data(), size) == 0;
}

}  // namespace

Error slot_file_failure(const fs::path& path, const std::string& what) {
  const int number = errno;
  return {file_error_code(number),
          path.string() + ": " + what + ": " + std::generic_category().message(number)};
}

Error slot_file_conflict(const fs::path& path, const std::string& why) {
  return {ErrorCode::state_conflict, path.string() + ": " + why};
}

Result<std::optional<FoundLabel>> find_slot_file_label(const fs::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    if (errno == ENOENT) return std::optional<FoundLabel>();
    return slot_file_failure(path, "cannot be opened");
  }
  struct ::stat status {};
  if (::fstat(file.get(), &status) != 0) return slot_file_failure(path, "cannot be examined");
  if (!S_ISREG(status.st_mode)) return slot_file_conflict(path, "is not a regular file");
  if (status.st_size == 0) return std::optional<FoundLabel>();
  std::array<Page, 2> pages;
  std::array<std::optional<SlotFileLabel>, 2> labels;
  std::array<std::span<const std::byte>, 2> read;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const ::ssize_t got = ::pread(file.get(), pages[i].bytes.data(), kPageBytes,
                                  static_cast<::off_t>(i * kPageBytes));
    if (got < 0 && errno != EIO) return slot_file_failure(path, "cannot be read");
    if (got > 0) read[i] = std::span(pages[i].bytes).first(static_cast<std::size_t>(got));
    labels[i] = decode(read[i]);
  }
  const auto& either = labels[0] ? labels[0] : labels[1];
  if (either) {
    const bool both = labels[0] && labels[1];
    const bool differs =
        both && std::memcmp(pages[0].bytes.data(), pages[1].bytes.data(), kPageBytes) != 0;
    return std::optional(FoundLabel{.label = *either, .damaged = !both, .differs = differs});
  }
  const bool ours = begins_with_magic(read[0]) || begins_with_magic(read[1]);
  if (!ours) return slot_file_conflict(path, "was not made by Cairn and is left as it is");
  // The file has no slots left.
  if (static_cast<std::uint64_t>(status.st_size) <= kSlotFileLabelBytes) {
    return std::optional<FoundLabel>();
  }
  const auto version = other_version(read[0]);
  if (version && version == other_version(read[1])) {
    return slot_file_conflict(path, "is a slot file of version " + std::to_string(*version) +
                                        "; this program reads version " + std::to_string(kVersion) +
                                        ", and leaves it as it is");
  }
  return slot_file_conflict(path, "is a damaged slot file, and is left as it is");
}

Result<> write_slot_file_label(int fd, const SlotFileLabel& label, const fs::path& path) {
  if (label.description.size() > kMaxDescriptionBytes) {
    return Error{ErrorCode::impossible, path.string() + ": the cache's description takes " +
                                            std::to_string(label.description.size()) +
                                            " bytes; a slot file keeps " +
                                            std::to_string(kMaxDescriptionBytes) + " at most"};
  }
  Page page;
  encode(label, page);
  for (const ::off_t at : {::off_t{0}, static_cast<::off_t>(kPageBytes)}) {
    if (::pwrite(fd, page.bytes.data(), kPageBytes, at) != static_cast<::ssize_t>(kPageBytes) ||
        ::fdatasync(fd) != 0) {
      return slot_file_failure(path, "its label cannot be written");
    }
  }
  return {};
}

std::string shape_text(const SlotFileLabel& label) {
  return std::to_string(label.shape.num_blocks) + " blocks of num_layers " +
         std::to_string(label.shape.num_layers) + ", outer_dim " +
         std::to_string(label.shape.outer_dim) + ", page_size " +
         std::to_string(label.shape.page_size) + ", inner_dim " +
         std::to_string(label.shape.inner_dim) + ", dtype_width_bytes " +
         std::to_string(label.shape.dtype_width_bytes) + " in " + std::to_string(label.file_count) +
         " files" + (label.shapes_hash == 0 ? "" : ", shared by several KV groups");
}

}  // namespace cairn
