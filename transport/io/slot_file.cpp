#include "transport/io/slot_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>

#include "base/file_descriptor.hpp"
#include "base/file_error.hpp"
#include "base/random.hpp"
#include "layouts/builder.hpp"
#include "transport/io/slot_file_label.hpp"

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kSlotAlignment = 4096;
constexpr std::string_view kUnfinished = "new";

// Leaves the description empty.
SlotFileLabel make_label(const SlotFileOptions& options, std::uint64_t file_id,
                         std::size_t number) {
  return {.file_id = file_id,
          .file_number = static_cast<std::uint32_t>(number),
          .file_count = static_cast<std::uint32_t>(options.paths.size()),
          .owner = options.owner.substr(0, kMaxOwnerBytes),
          .shape = options.shape,
          .shapes_hash = options.shapes_hash};
}

// Returns true if both are labels of the same file of the same tier. The first may have fewer
// slots, see open_slot_file().
bool belong_together(const SlotFileLabel& a, const SlotFileLabel& b) {
  LayoutConfig shape = a.shape;
  shape.alignment = b.shape.alignment;  // a label does not keep it
  if (shape.num_blocks < b.shape.num_blocks) shape.num_blocks = b.shape.num_blocks;
  return shape == b.shape && a.shapes_hash == b.shapes_hash && a.file_id == b.file_id &&
         a.file_number == b.file_number && a.file_count == b.file_count && a.owner == b.owner;
}

// A cache must not replace another cache's file.
Result<> check_owner(const fs::path& path, const SlotFileLabel& label, const std::string& owner) {
  if (label.owner == owner) return {};
  return slot_file_conflict(path, "holds the blocks of cache " + label.owner);
}

// Returns true if all files exist and belong together, false if new files may be made.
Result<bool> can_go_on(const SlotFileOptions& options,
                       std::vector<std::optional<FoundLabel>>& labels) {
  const SlotFileLabel* first = nullptr;
  labels.reserve(options.paths.size());
  for (const fs::path& path : options.paths) {
    auto found = find_slot_file_label(path);
    if (!found) return std::move(found).error();
    labels.push_back(std::move(*found));
    if (!labels.back()) continue;
    CAIRN_TRY(check_owner(path, labels.back()->label, options.owner));
    if (first == nullptr) first = &labels.back()->label;
  }
  if (first == nullptr) return false;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const SlotFileLabel wanted = make_label(options, first->file_id, i);
    if (labels[i] && belong_together(labels[i]->label, wanted)) continue;
    if (options.replace_other_shape) return false;
    if (!labels[i]) {
      return slot_file_conflict(options.paths[i],
                                "is missing or truncated, but the cache's other files exist; "
                                "replace_other_shape replaces them all by empty ones");
    }
    return slot_file_conflict(options.paths[i],
                              "holds " + shape_text(labels[i]->label) + ", but the cache wants " +
                                  shape_text(wanted) +
                                  "; replace_other_shape replaces all its files by empty ones");
  }
  return true;
}

// Inspects the existing files before any is changed.
std::vector<std::string> find_damage(const SlotFileOptions& options,
                                     const std::vector<std::optional<FoundLabel>>& labels,
                                     std::uint64_t size_bytes) {
  std::vector<std::string> damage;
  for (std::size_t i = 0; i < options.paths.size(); ++i) {
    std::error_code absent;
    const std::uint64_t found_bytes = fs::file_size(options.paths[i], absent);
    if (absent) continue;
    const std::string path = options.paths[i].string();
    if (labels[i] && labels[i]->damaged) {
      damage.push_back(path + ": one of the two pages of its label");
    }
    // A file of another shape has another size.
    const bool is_of_this_shape =
        !labels[i] || labels[i]->label.shape.num_blocks == options.shape.num_blocks;
    if (found_bytes < size_bytes && is_of_this_shape) {
      damage.push_back(path + ": cut off after " + std::to_string(found_bytes) + " bytes of " +
                       std::to_string(size_bytes));
    }
  }
  return damage;
}

struct FileSize {
  std::uint64_t size_bytes = 0;
  Region::FileRoom room = Region::FileRoom::reserved;
};
// Writes the file under another name and renames it, so that a file under its name always has a
// label.
Result<> make_file(const fs::path& path, const FileSize& size, const SlotFileLabel& label) {
  const fs::path beside = beside_slot_file(path, kUnfinished);
  std::error_code ignored;
  fs::remove(beside, ignored);
  {
    auto region = Region::disk_file(beside, size.size_bytes, size.room);
    if (!region) {
      fs::remove(beside, ignored);
      return std::move(region).error();
    }
    const int fd = region->view().fd();
    auto written = write_slot_file_label(fd, label, beside);
    if (written && ::fsync(fd) != 0) written = slot_file_failure(beside, "cannot be flushed");
    if (!written) {
      fs::remove(beside, ignored);
      return written;
    }
    // Rename while it is locked: another server on the same folder may be removing unfinished
    // files.
    if (::rename(beside.c_str(), path.c_str()) != 0) {
      Error error = slot_file_failure(beside, "cannot be renamed");
      fs::remove(beside, ignored);
      return error;
    }
  }
  return {};
}

// Switches the file to direct I/O and returns the memory alignment it needs. The error says why it
// cannot.
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
  // Lengths and offsets are multiples of a page anyway. For memory, takes the most that a device
  // may need.
  return static_cast<std::uint32_t>(kSlotAlignment);
}

// Removes new files if a later step fails. Otherwise they would use disk space and block the next
// attempt.
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

SlotSpacing spacing_over(std::size_t files, std::uint32_t run) {
  return {.first_bytes = kSlotFileLabelBytes,
          .header_bytes = kSlotHeaderBytes,
          .alignment = kSlotAlignment,
          .files = static_cast<std::uint32_t>(files),
          .run = run};
}

// Replaces all files by empty ones. Fails if a file is in use.
Result<> make_files(const SlotFileOptions& options, const FileSize& size, std::uint64_t file_id,
                    MadeFiles& made) {
  for (std::size_t i = 0; i < options.paths.size(); ++i) {
    const fs::path& path = options.paths[i];
    std::error_code error;
    if (const auto there = fs::file_size(path, error); !error && there > 0) {
      auto unused = Region::disk_file(path, there);
      if (!unused) return std::move(unused).error();
    }
    CAIRN_TRY(make_file(path, size, make_label(options, file_id, i)));
    made.add(path);
  }
  return {};
}

// Applies `change` to the labels and rewrites those that changed or are damaged. `change` returns
// whether it changed anything.
Result<> relabel(const std::vector<fs::path>& paths, const BlockLayout& layout,
                 const std::function<bool(SlotFileLabel&)>& change) {
  const auto files = layout.regions();
  for (std::size_t i = 0; i < paths.size(); ++i) {
    auto found = find_slot_file_label(paths[i]);
    if (!found) return std::move(found).error();
    if (!*found) return slot_file_conflict(paths[i], "has gone");
    FoundLabel& there = **found;
    if (!change(there.label) && !there.damaged && !there.differs) continue;
    CAIRN_TRY(write_slot_file_label(files[i].fd(), there.label, paths[i]));
  }
  return {};
}

Region::FileRoom room_of(bool is_sparse) {
  return is_sparse ? Region::FileRoom::sparse : Region::FileRoom::reserved;
}

std::uint64_t slot_offset(const RegionView& file, const PieceLocation& block) {
  return file.file_offset_bytes() + block.offset_bytes - kSlotHeaderBytes;
}

// Beyond the end of the files, so that it changes nothing.
Result<> check_holes(const SlotFileOptions& options, const BlockLayout& layout) {
  const auto files = layout.regions();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::uint64_t end = files[i].file_offset_bytes() + files[i].size_bytes();
    const auto punched = punch_hole(files[i].fd(), {end, kDiskPageBytes});
    if (punched) continue;
    if (punched.error().code != ErrorCode::not_implemented) return punched;
    return Error{ErrorCode::impossible, "the file system of " + options.paths[i].string() +
                                            " has no holes, which a codec on disk needs"};
  }
  return {};
}

}  // namespace

Result<> punch_tail(DiskIo& disk, const BlockLayout& slots, const SlotTail& tail) {
  const PieceLocation at = slots.geometry().locate({.block = tail.slot});
  const RegionView& file = slots.regions()[at.region];
  const std::uint64_t kept_bytes = tail.kept_pages * kDiskPageBytes;
  const std::uint64_t all_bytes = tail.slots * slots.geometry().block_stride_bytes();
  if (kept_bytes >= all_bytes) return {};
  return disk.punch(file.fd(), {.offset_bytes = slot_offset(file, at) + kept_bytes,
                                .size_bytes = all_bytes - kept_bytes});
}

Result<> punch_all_but(DiskIo& disk, const BlockLayout& slots, std::span<const SlotTail> kept) {
  const auto files = slots.regions();
  std::vector<std::vector<DiskRange>> by_file(files.size());
  for (const SlotTail& tail : kept) {
    const PieceLocation at = slots.geometry().locate({.block = tail.slot});
    by_file[at.region].push_back({.offset_bytes = slot_offset(files[at.region], at),
                                  .size_bytes = tail.kept_pages * kDiskPageBytes});
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::ranges::sort(by_file[i], {}, &DiskRange::offset_bytes);
    std::uint64_t at = files[i].file_offset_bytes() + kSlotFileLabelBytes;
    by_file[i].push_back({.offset_bytes = files[i].file_offset_bytes() + files[i].size_bytes()});
    for (const DiskRange& next : by_file[i]) {
      if (at < next.offset_bytes) {
        CAIRN_TRY(
            disk.punch(files[i].fd(), {.offset_bytes = at, .size_bytes = next.offset_bytes - at}));
      }
      at = next.offset_bytes + next.size_bytes;
    }
  }
  return {};
}

Result<BlockLayout> resize_slot_file(const BlockLayout& layout, const SlotFileSize& size) {
  LayoutConfig shape = layout.config();
  shape.num_blocks = size.num_slots;
  const SlotSpacing spacing = spacing_over(layout.regions().size(), layout.geometry().slot_run());
  CAIRN_TRY(validate(shape));
  CAIRN_TRY(check_slots(shape, spacing));
  const std::uint64_t size_bytes = Geometry::in_slots(shape, spacing).region_bytes();
  std::vector<RegionView> files;
  for (const RegionView& region : layout.regions()) {
    auto file = Region::resize_disk_file(region, size_bytes, room_of(size.sparse));
    if (!file) return std::move(file).error();
    files.push_back(*file);
  }
  return LayoutBuilder().config(shape).in_slots(spacing).with_memory_regions(files).build();
}

Result<> label_slot_file(const std::vector<fs::path>& paths, const BlockLayout& layout,
                         std::uint32_t num_slots) {
  return relabel(paths, layout, [num_slots](SlotFileLabel& label) {
    return std::exchange(label.shape.num_blocks, num_slots) != num_slots;
  });
}

fs::path beside_slot_file(const fs::path& slot_file, std::string_view what) {
  fs::path path = slot_file;
  path += kBesideSlotFile;
  path += what;
  return path;
}

std::string unfinished_ending() { return kBesideSlotFile + std::string(kUnfinished); }

bool remove_unfinished_file(const fs::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct ::stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return false;
  if (status.st_size < static_cast<::off_t>(kSlotFileLabelBytes)) return false;
  // A server that is writing the file holds this lock.
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return false;
  std::array<char, kSlotFileMagic.size()> begin{};
  if (::pread(file.get(), begin.data(), begin.size(), 0) < 0) return false;
  if (begin != kSlotFileMagic && begin != decltype(begin){}) return false;
  std::error_code error;
  return fs::remove(path, error);
}

Result<SlotFile> open_slot_file(const SlotFileOptions& options) {
  const SlotSpacing spacing = spacing_over(options.paths.size(), options.run);
  CAIRN_TRY(validate(options.shape));
  CAIRN_TRY(check_slots(options.shape, spacing));
  const std::uint64_t size_bytes = Geometry::in_slots(options.shape, spacing).region_bytes();

  std::vector<std::optional<FoundLabel>> labels;
  auto going_on = can_go_on(options, labels);
  if (!going_on) return std::move(going_on).error();
  const std::uint64_t file_id =
      *going_on ? labels.front()->label.file_id : RandomBytes().next_u64();
  std::vector<std::string> damage = find_damage(options, labels, size_bytes);
  MadeFiles made;
  const FileSize size{size_bytes, room_of(options.sparse || !options.reserve)};
  if (!*going_on) CAIRN_TRY(make_files(options, size, file_id, made));

  auto layout = LayoutBuilder()
                    .config(options.shape)
                    .in_slots(spacing)
                    .allocate_disk(options.paths, size.room)
                    .build();
  if (!layout) return std::move(layout).error();
  if (options.sparse) CAIRN_TRY(check_holes(options, *layout));
  // The files are locked, so nobody else writes them.
  for (std::size_t i = 0; *going_on && i < labels.size(); ++i) {
    if (!labels[i]->damaged && !labels[i]->differs) continue;
    CAIRN_TRY(write_slot_file_label(layout->regions()[i].fd(), labels[i]->label, options.paths[i]));
  }
  std::uint32_t memory_alignment = 1;
  std::string not_direct = options.direct ? "" : "the settings say so";
  for (const RegionView& region : layout->regions()) {
    if (!options.direct) break;
    auto alignment = make_direct(region.fd());
    if (alignment) {
      memory_alignment = std::max(memory_alignment, *alignment);
    } else {
      not_direct = alignment.error().detail;
    }
  }
  const auto num_slots = static_cast<std::uint32_t>(options.shape.num_blocks);
  if (*going_on) CAIRN_TRY(label_slot_file(options.paths, *layout, num_slots));
  auto slots = std::make_unique<SlotContents>(
      SlotContents::Options{.file_id = file_id,
                            .num_slots = num_slots,
                            .block_bytes = layout->geometry().block_bytes(),
                            .slot_bytes = layout->geometry().block_stride_bytes(),
                            .memory_alignment = memory_alignment,
                            .check_every_read = options.check_every_read,
                            .sparse = options.sparse});
  made.keep();
  return SlotFile{.layout = std::move(*layout),
                  .slots = std::move(slots),
                  .is_new = !*going_on,
                  .not_direct = std::move(not_direct),
                  .damage = std::move(damage)};
}

Result<> describe_slot_file(const std::vector<fs::path>& paths, const BlockLayout& layout,
                            const std::string& description) {
  return relabel(paths, layout, [&description](SlotFileLabel& label) {
    return std::exchange(label.description, description) != description;
  });
}

Result<> flush_slot_file(DiskIo& disk, const BlockLayout& layout) {
  for (const RegionView& region : layout.regions()) CAIRN_TRY(disk.flush(region.fd()));
  return {};
}

}  // namespace cairn
