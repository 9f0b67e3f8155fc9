#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "layouts/block_layout.hpp"
#include "transport/io/disk_io.hpp"
#include "transport/io/slot_contents.hpp"
#include "transport/io/slot_header.hpp"

namespace cairn {

struct SlotFileOptions {
  std::vector<std::filesystem::path> paths;  // at least one; slots are distributed round-robin
  std::string owner;                         // the cache's name, at most 64 bytes
  LayoutConfig shape;                        // num_blocks: slots in all files
  std::uint32_t run = 1;                     // see SlotSpacing
  std::uint64_t shapes_hash = 0;             // see SlotFileLabel
  bool replace_other_shape = false;
  // The files have pages only where blocks are, and give back those of blocks that become shorter.
  bool sparse = false;
  bool reserve = true;  // the space of files that are not sparse
  bool direct = true;   // bypasses the page cache if the file system can
  bool check_every_read = true;
};

// Files beside a slot file are named after it, plus this character and a suffix. No slot file's
// path may contain it, so the two never collide.
constexpr char kBesideSlotFile = '~';
std::filesystem::path beside_slot_file(const std::filesystem::path& slot_file,
                                       std::string_view what);

// The end of a new file's name until the file is complete.
std::string unfinished_ending();
// Removes an unfinished file that no server is writing any more. Returns false if it stays.
bool remove_unfinished_file(const std::filesystem::path& path);

// A disk tier's files. They stay locked while the layout lives.
struct SlotFile {
  BlockLayout layout;
  std::unique_ptr<SlotContents> slots;
  bool is_new = false;                // the files were just created; all slots are free
  std::string not_direct{};           // why direct I/O is not used; empty if it is
  std::vector<std::string> damage{};  // damage found and repaired, each naming the file
};

// Opens a cache's slot files, or creates them. Files whose labels name fewer slots grow: a server
// that was killed while it resized them leaves such. It never leaves labels that name more. Errors:
// state_conflict, naming the file, if a file is in use, was not made by Cairn, or belongs to
// another cache; also if it has another shape or more slots (the error names both) and may not be
// replaced. no_capacity if the disk is full; io_error; impossible if they shall be sparse and the
// file system has no holes.
Result<SlotFile> open_slot_file(const SlotFileOptions& options);

// Stores the description in the files' labels (SlotFileLabel) unless it is there already. Blocks.
// Errors: impossible if it is too long; io_error; no_capacity. REQUIRES: the layout belongs to
// these files.
Result<> describe_slot_file(const std::vector<std::filesystem::path>& paths,
                            const BlockLayout& layout, const std::string& description);
// Resizes the files of a tier's layout for `num_slots`. Returns the new layout, which borrows the
// files; remaining slots keep their positions. After an error the files are at least as long as
// before. Blocks. REQUIRES: the slots to be removed are not in use.
struct SlotFileSize {
  std::uint32_t num_slots = 0;
  bool sparse = false;  // as in SlotFileOptions
};
Result<BlockLayout> resize_slot_file(const BlockLayout& layout, const SlotFileSize& size);
// Gives pages of a sparse file back to the file system: all after the first `kept_pages`, of the
// slots that a block covers. Blocks. Errors: those of DiskIo::punch().
struct SlotTail {
  std::uint32_t slot = 0;
  std::uint32_t slots = 1;
  std::uint64_t kept_pages = 0;  // with the header's
};
Result<> punch_tail(DiskIo& disk, const BlockLayout& slots, const SlotTail& tail);
// The same for all pages but those that these keep, in any order.
Result<> punch_all_but(DiskIo& disk, const BlockLayout& slots, std::span<const SlotTail> kept);
// Sets the number of slots in the files' labels, durably. The saved configuration must never name
// fewer slots than the labels: call this before the configuration is saved with fewer slots, or
// after it is saved with more. Blocks. Errors: those of describe_slot_file().
Result<> label_slot_file(const std::vector<std::filesystem::path>& paths, const BlockLayout& layout,
                         std::uint32_t num_slots);

// Writes the data of completed writes to a disk tier's files past the disk's cache. Blocks. Errors:
// io_error, no_capacity.
Result<> flush_slot_file(DiskIo& disk, const BlockLayout& layout);

}  // namespace cairn
