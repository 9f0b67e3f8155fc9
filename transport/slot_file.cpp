#include "transport/slot_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>

#include "base/file_error.hpp"
#include "base/hash.hpp"
#include "base/random.hpp"
#include "layouts/builder.hpp"

namespace cairn {
namespace {

namespace fs = std::filesystem;

// A file begins with a page that says what it is; the slots follow.
constexpr std::uint64_t kLabelPageBytes = 4096;
constexpr std::uint64_t kSlotAlignment = 4096;
constexpr std::array<char, 8> kFileMagic = {'C', 'A', 'I', 'R', 'N', 'D', 'S', 'K'};
constexpr std::uint32_t kFileVersion = 1;
constexpr std::size_t kMaxOwnerBytes = 64;
constexpr std::string_view kUnfinished = "new";

// As it lies on disk, little-endian.
static_assert(std::endian::native == std::endian::little);
struct FileLabel {
  std::array<char, 8> magic;
  std::uint64_t checksum;  // of all that follows it
  std::uint32_t version;
  std::uint32_t file_number;  // of file_count
  std::uint32_t file_count;
  std::uint32_t owner_size;
  std::uint64_t file_id;  // of all files of the tier
  std::uint64_t num_slots;
  std::uint64_t num_layers;
  std::uint64_t outer_dim;
  std::uint64_t page_size;
  std::uint64_t inner_dim;
  std::uint64_t dtype_width_bytes;
  std::array<char, kMaxOwnerBytes> owner;
};
static_assert(sizeof(FileLabel) == 152);

std::uint64_t checksum_of(const FileLabel& label) {
  constexpr std::size_t kFrom = sizeof(label.magic) + sizeof(label.checksum);
  return hash_bytes(std::as_bytes(std::span(&label, 1)).subspan(kFrom), 0);
}

FileLabel make_label(const SlotFileOptions& options, std::uint64_t file_id, std::size_t number) {
  FileLabel label{};
  label.magic = kFileMagic;
  label.version = kFileVersion;
  label.file_number = static_cast<std::uint32_t>(number);
  label.file_count = static_cast<std::uint32_t>(options.paths.size());
  label.owner_size = static_cast<std::uint32_t>(std::min(options.owner.size(), kMaxOwnerBytes));
  label.file_id = file_id;
  label.num_slots = options.shape.num_blocks;
  label.num_layers = options.shape.num_layers;
  label.outer_dim = options.shape.outer_dim;
  label.page_size = options.shape.page_size;
  label.inner_dim = options.shape.inner_dim;
  label.dtype_width_bytes = options.shape.dtype_width_bytes;
  std::memcpy(label.owner.data(), options.owner.data(), label.owner_size);
  label.checksum = checksum_of(label);
  return label;
}

std::string shape_text(const FileLabel& label) {
  return std::to_string(label.num_slots) + " blocks of num_layers " +
         std::to_string(label.num_layers) + ", outer_dim " + std::to_string(label.outer_dim) +
         ", page_size " + std::to_string(label.page_size) + ", inner_dim " +
         std::to_string(label.inner_dim) + ", dtype_width_bytes " +
         std::to_string(label.dtype_width_bytes) + " in " + std::to_string(label.file_count) +
         " files";
}

Error file_error(const fs::path& path, const std::string& what) {
  const int number = errno;
  return {file_error_code(number),
          path.string() + ": " + what + ": " + std::generic_category().message(number)};
}

Error conflict(const fs::path& path, const std::string& why) {
  return {ErrorCode::state_conflict, path.string() + ": " + why};
}

struct Fd {
  explicit Fd(int number) : fd(number) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() {
    if (fd >= 0) ::close(fd);
  }
  const int fd;
};

// What is at the path: nothing, or the label of a slot file. Refuses everything else.
Result<std::optional<FileLabel>> find_label(const fs::path& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd < 0) {
    if (errno == ENOENT) return std::optional<FileLabel>();
    return file_error(path, "cannot be opened");
  }
  struct ::stat status {};
  if (::fstat(file.fd, &status) != 0) return file_error(path, "cannot be examined");
  if (!S_ISREG(status.st_mode)) return conflict(path, "is not a regular file");
  if (status.st_size == 0) return std::optional<FileLabel>();
  FileLabel label{};
  const ::ssize_t got = ::pread(file.fd, &label, sizeof(label), 0);
  if (got < 0) return file_error(path, "cannot be read");
  if (got != sizeof(label) || label.magic != kFileMagic) {
    return conflict(path, "was not made by Cairn and is left as it is");
  }
  if (label.version != kFileVersion || label.checksum != checksum_of(label)) {
    return conflict(path, "is a slot file of another version, or damaged, and is left as it is");
  }
  return std::optional(label);
}

// One file cannot replace another cache's.
Result<> check_owner(const fs::path& path, const FileLabel& label, const std::string& owner) {
  const std::string_view whose(label.owner.data(),
                               std::min<std::size_t>(label.owner_size, kMaxOwnerBytes));
  if (whose == owner) return {};
  return conflict(path, "holds the blocks of cache " + std::string(whose));
}

// True where all files are there and belong together; false where there is nothing of value.
Result<bool> can_go_on(const SlotFileOptions& options,
                       std::vector<std::optional<FileLabel>>& labels) {
  std::size_t found = 0;
  for (const fs::path& path : options.paths) {
    auto label = find_label(path);
    if (!label) return std::move(label).error();
    if (*label) CAIRN_TRY(check_owner(path, **label, options.owner));
    if (*label) ++found;
    labels.push_back(*label);
  }
  if (found == 0) return false;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto& first = *std::ranges::find_if(labels, [](const auto& l) { return l.has_value(); });
    const FileLabel wanted = make_label(options, first->file_id, i);
    if (labels[i] && std::memcmp(&*labels[i], &wanted, sizeof(wanted)) == 0) continue;
    if (options.replace_other_shape) return false;
    if (!labels[i]) {
      return conflict(options.paths[i],
                      "is missing beside the cache's other files; with "
                      "replace_other_shape they are made anew, empty");
    }
    return conflict(options.paths[i],
                    "holds " + shape_text(*labels[i]) + ", but the cache wants " +
                        shape_text(wanted) +
                        "; with replace_other_shape it is made anew and loses its blocks");
  }
  return true;
}

// Written beside and renamed, so that a file under its name always has its label.
Result<> make_file(const fs::path& path, std::uint64_t size_bytes, const FileLabel& label) {
  const fs::path beside = beside_slot_file(path, kUnfinished);
  std::error_code ignored;
  fs::remove(beside, ignored);
  {
    auto region = Region::disk_file(beside, size_bytes);
    if (!region) {
      fs::remove(beside, ignored);
      return std::move(region).error();
    }
    std::array<std::byte, kLabelPageBytes> page{};
    std::memcpy(page.data(), &label, sizeof(label));
    if (::pwrite(region->view().fd(), page.data(), page.size(), 0) !=
            static_cast<::ssize_t>(page.size()) ||
        ::fsync(region->view().fd()) != 0) {
      Error error = file_error(beside, "cannot be written");
      fs::remove(beside, ignored);
      return error;
    }
    // While it is locked: another server over the same folder may be clearing away.
    if (::rename(beside.c_str(), path.c_str()) != 0) {
      Error error = file_error(beside, "cannot be renamed");
      fs::remove(beside, ignored);
      return error;
    }
  }
  return {};
}

// What direct I/O on this file asks of memory; an error says why it cannot be.
Result<std::uint32_t> make_direct(int fd) {
  struct ::statx asked {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &asked) == 0 &&
      (asked.stx_mask & STATX_DIOALIGN) != 0) {
    if (asked.stx_dio_mem_align == 0 || asked.stx_dio_offset_align > kSlotAlignment ||
        asked.stx_dio_mem_align > kSlotAlignment) {
      return Error{ErrorCode::not_implemented, "the file system has no direct I/O for this file"};
    }
  }
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_DIRECT) != 0) {
    return Error{ErrorCode::not_implemented,
                 "the file system refuses direct I/O: " + std::generic_category().message(errno)};
  }
  // Lengths and offsets are multiples of pages anyhow; memory of what a device may ask at most.
  return static_cast<std::uint32_t>(kSlotAlignment);
}

// Files that were made go again where what they were made for fails: they would hold the disk's
// room and stand in the way of the next attempt.
class MadeFiles {
 public:
  MadeFiles() = default;
  MadeFiles(const MadeFiles&) = delete;
  MadeFiles& operator=(const MadeFiles&) = delete;
  ~MadeFiles() {
    std::error_code ignored;
    for (const fs::path& path : paths_) fs::remove(path, ignored);
  }
  void add(const fs::path& path) { paths_.push_back(path); }
  void keep() { paths_.clear(); }

 private:
  std::vector<fs::path> paths_;
};

// Makes all files anew, empty. Not from under somebody who uses them.
Result<> make_files(const SlotFileOptions& options, std::uint64_t size_bytes, std::uint64_t file_id,
                    MadeFiles& made) {
  for (std::size_t i = 0; i < options.paths.size(); ++i) {
    const fs::path& path = options.paths[i];
    std::error_code error;
    if (const auto there = fs::file_size(path, error); !error && there > 0) {
      auto unused = Region::disk_file(path, there);
      if (!unused) return std::move(unused).error();
    }
    CAIRN_TRY(make_file(path, size_bytes, make_label(options, file_id, i)));
    made.add(path);
  }
  return {};
}

}  // namespace

fs::path beside_slot_file(const fs::path& slot_file, std::string_view what) {
  fs::path path = slot_file;
  path += kBesideSlotFile;
  path += what;
  return path;
}

std::string unfinished_ending() { return kBesideSlotFile + std::string(kUnfinished); }

bool remove_unfinished_file(const fs::path& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct ::stat status {};
  if (file.fd < 0 || ::fstat(file.fd, &status) != 0 || !S_ISREG(status.st_mode)) return false;
  if (status.st_size < static_cast<::off_t>(kLabelPageBytes)) return false;
  // Whoever makes one has it locked.
  if (::flock(file.fd, LOCK_EX | LOCK_NB) != 0) return false;
  std::array<char, kFileMagic.size()> begin{};
  if (::pread(file.fd, begin.data(), begin.size(), 0) < 0) return false;
  if (begin != kFileMagic && begin != std::array<char, kFileMagic.size()>{}) return false;
  std::error_code error;
  return fs::remove(path, error);
}

Result<SlotFile> open_slot_file(const SlotFileOptions& options) {
  const SlotSpacing spacing{.first_bytes = kLabelPageBytes,
                            .header_bytes = kSlotHeaderBytes,
                            .alignment = kSlotAlignment,
                            .files = static_cast<std::uint32_t>(options.paths.size())};
  CAIRN_TRY(validate(options.shape));
  CAIRN_TRY(check_slots(options.shape, spacing));
  const std::uint64_t size_bytes = Geometry::in_slots(options.shape, spacing).region_bytes();

  std::vector<std::optional<FileLabel>> labels;
  auto going_on = can_go_on(options, labels);
  if (!going_on) return std::move(going_on).error();
  const std::uint64_t file_id = *going_on ? labels.front()->file_id : RandomBytes().next_u64();
  MadeFiles made;
  if (!*going_on) CAIRN_TRY(make_files(options, size_bytes, file_id, made));

  std::vector<Region> regions;
  for (const fs::path& path : options.paths) {
    auto region = Region::disk_file(path, size_bytes);
    if (!region) return std::move(region).error();
    regions.push_back(std::move(*region));
  }
  std::uint32_t memory_alignment = 1;
  std::string not_direct = options.direct ? "" : "the settings say so";
  for (const Region& region : regions) {
    if (!options.direct) break;
    auto alignment = make_direct(region.view().fd());
    if (alignment) {
      memory_alignment = std::max(memory_alignment, *alignment);
    } else {
      not_direct = alignment.error().detail;
    }
  }
  auto layout = LayoutBuilder()
                    .config(options.shape)
                    .in_slots(spacing)
                    .with_memory_regions(std::move(regions))
                    .build();
  if (!layout) return std::move(layout).error();
  auto slots = std::make_unique<DiskSlots>(
      DiskSlots::Options{.file_id = file_id,
                         .num_slots = static_cast<std::uint32_t>(options.shape.num_blocks),
                         .memory_alignment = memory_alignment,
                         .check_every_read = options.check_every_read});
  made.keep();
  return SlotFile{.layout = std::move(*layout),
                  .slots = std::move(slots),
                  .is_new = !*going_on,
                  .not_direct = std::move(not_direct)};
}

Result<> flush_slot_file(const BlockLayout& layout) {
  for (const RegionView& region : layout.regions()) {
    while (::fdatasync(region.fd()) != 0) {
      if (errno != EINTR) return file_error("the slot file", "cannot be flushed");
    }
  }
  return {};
}

}  // namespace cairn
