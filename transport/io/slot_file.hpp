#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "layouts/block_layout.hpp"
#include "transport/io/disk_io.hpp"
#include "transport/io/slot_checksums.hpp"
#include "transport/io/slot_header.hpp"

namespace cairn {

struct SlotFileOptions {
  std::vector<std::filesystem::path> paths;  // slots are dealt out over them in turn; 1 at least
  std::string owner;                         // the cache, at most 64 bytes
  LayoutConfig shape;                        // num_blocks: slots in all
  bool replace_other_shape = false;
  bool direct = true;  // past the page cache, where the file system can
  bool check_every_read = true;
};

// What lies beside a slot file has its name, this, and what it is. No slot file's path has it, and
// so none is taken for what lies beside another.
constexpr char kBesideSlotFile = '~';
std::filesystem::path beside_slot_file(const std::filesystem::path& slot_file,
                                       std::string_view what);

// Of a file that is being made, the end of its name until it is whole.
std::string unfinished_ending();
// Removes it where it is one that nobody is making any more. False: it stays.
bool remove_unfinished_file(const std::filesystem::path& path);

// A disk tier's files, locked while the layout lives.
struct SlotFile {
  BlockLayout layout;
  std::unique_ptr<SlotChecksums> slots;
  bool is_new = false;                // all slots are free: nothing was there
  std::string not_direct{};           // why direct I/O is not used; empty where it is
  std::vector<std::string> damage{};  // what was found damaged, each naming the file; it is mended
};

// Opens a cache's slot files, or makes them (all of their bytes reserved). Files that say of
// themselves that they have fewer slots grow: a server that was killed while it resized them leaves
// such, and never files that say that they have more. state_conflict, naming the file, where one is
// in use, was not made by Cairn, is another cache's, or holds blocks of another shape, or more of
// them (both are told), and may not be replaced; no_capacity: the disk is full; io_error.
Result<SlotFile> open_slot_file(const SlotFileOptions& options);

// Keeps the description in the files' labels (SlotFileLabel), where it is not there yet. Blocks.
// REQUIRES: the layout is of these files. impossible where it is too long; io_error; no_capacity.
Result<> describe_slot_file(const std::vector<std::filesystem::path>& paths,
                            const BlockLayout& layout, const std::string& description);
// Makes the files of a tier's layout as long as so many slots need, and answers the layout of
// those, which borrows the files; slots that stay lie where they did. After an error the files are
// at least as long as they were. Blocks. REQUIRES: slots that go are in no one's use.
Result<BlockLayout> resize_slot_file(const BlockLayout& layout, std::uint32_t num_slots);
// Lets the files say of themselves that they have so many slots, durably. What a start expects must
// never be less than what they say, so this comes before the one, or after the other. Blocks.
// As describe_slot_file() fails.
Result<> label_slot_file(const std::vector<std::filesystem::path>& paths, const BlockLayout& layout,
                         std::uint32_t num_slots);

// Brings what was written to a disk tier's files so far past the disk's own cache. Blocks.
// io_error; no_capacity.
Result<> flush_slot_file(DiskIo& disk, const BlockLayout& layout);

}  // namespace cairn
