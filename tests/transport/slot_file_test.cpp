#include "transport/io/slot_file.hpp"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "tests/fakes/faulty_disk_io.hpp"
#include "tests/transport/support.hpp"
#include "transport/io/header_scan.hpp"
#include "transport/io/slot_file_label.hpp"

namespace cairn::test {
namespace {

SlotHeader header_of(std::uint64_t slot) {
  return {.block = {.key = std::string(64, 'k'),
                    .parent = std::string("\0p", 2),
                    .metadata = "{}",
                    .data_bytes = 240,
                    .data_checksum = 0x1234,
                    .expires_at_unix_ms = 13,
                    .priority = 15},
          .place = {.file_id = 7, .slot = slot, .generation = 9, .stamp = 11}};
}

TEST(SlotHeaderPage, DecodesWhatWasEncoded) {
  std::array<std::byte, kSlotHeaderBytes> page;
  encode_slot_header(header_of(3), page);
  const auto header = decode_slot_header(page);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->place.file_id, 7u);
  EXPECT_EQ(header->place.slot, 3u);
  EXPECT_EQ(header->block.data_bytes, 240u);
  EXPECT_EQ(header->block.data_checksum, 0x1234u);
  EXPECT_EQ(header->block.key, std::string(64, 'k'));
  EXPECT_EQ(header->block.parent, std::string("\0p", 2));
  EXPECT_EQ(header->block.metadata, "{}");
  EXPECT_EQ(header->place.generation, 9u);
  EXPECT_EQ(header->place.stamp, 11u);
  EXPECT_EQ(header->block.expires_at_unix_ms, 13);
  EXPECT_EQ(header->block.priority, 15u);
}

TEST(SlotHeaderPage, DetectsAFlippedBit) {
  std::array<std::byte, kSlotHeaderBytes> page;
  encode_slot_header(header_of(3), page);
  for (std::size_t at = 0; at < page.size(); at += at < 256 ? 1 : 61) {
    page[at] ^= std::byte{0x10};
    EXPECT_FALSE(decode_slot_header(page)) << at;
    page[at] ^= std::byte{0x10};
  }
  EXPECT_TRUE(decode_slot_header(page));
}

class SlotFileTest : public testing::Test {
 protected:
  SlotFileOptions options() {
    return {.paths = {folder_.path() / "a", folder_.path() / "b"},
            .owner = "cache",
            .shape = Storage::small_shape(7)};
  }
  TransferJob job(const BlockLayout& from, const BlockLayout& to, SlotFile& file) {
    TransferJob made = storage_.make_job(from, to, straight_pairs(7));
    made.slots = file.slots.get();
    return made;
  }

  fakes::TempDir folder_;
  Storage storage_;
  std::unique_ptr<DiskIo> real_ = make_positional_disk_io();
  fakes::FaultyDiskIo disk_{*real_};
  SystemClock clock_;
  TransferScheduler scheduler_{storage_.runtime(), disk_, clock_, {}};
};

// Device memory and badly aligned system memory go through staging.
TEST_F(SlotFileTest, BlocksOfEveryKindOfMemoryComeBack) {
  for (const bool direct : {true, false}) {
    for (const StorageKind kind : {StorageKind::system, StorageKind::pinned, StorageKind::device}) {
      for (const Arrangement arrangement : kAllArrangements) {
        auto settings = options();
        settings.direct = direct;
        settings.replace_other_shape = true;
        settings.shape.alignment = 1;
        SlotFile file = std::move(open_slot_file(settings).value());
        const BlockLayout memory = storage_.make(kind, arrangement, Storage::small_shape(7));
        const BlockLayout back = storage_.make(kind, arrangement, Storage::small_shape(7));
        const std::uint64_t block_bytes = memory.geometry().block_bytes();
        for (std::uint32_t i = 0; i < 7; ++i) {
          storage_.write_block(memory, i, pattern(i + 1, block_bytes));
        }
        ASSERT_EQ(run(scheduler_, job(memory, file.layout, file)).state, JobState::done);
        ASSERT_EQ(run(scheduler_, job(file.layout, back, file)).state, JobState::done);
        for (std::uint32_t i = 0; i < 7; ++i) {
          EXPECT_TRUE(same(storage_.read_block(back, i), pattern(i + 1, block_bytes)));
        }
      }
    }
  }
}

TEST_F(SlotFileTest, OnlyTheBlockWithChangedBytesFails) {
  auto settings = options();
  settings.direct = false;
  SlotFile file = std::move(open_slot_file(settings).value());
  const BlockLayout memory =
      storage_.make(StorageKind::pinned, Arrangement::contiguous, Storage::small_shape(7));
  for (std::uint32_t i = 0; i < 7; ++i) storage_.write_block(memory, i, pattern(i, 240));
  ASSERT_EQ(run(scheduler_, job(memory, file.layout, file)).state, JobState::done);
  {
    // Slot 3 is the second slot of the second file. Before it: a page, a slot of two pages, a
    // header.
    std::fstream raw(folder_.path() / "b", std::ios::in | std::ios::out | std::ios::binary);
    raw.seekp(8192 + 8192 + 4096 + 100).put('\x7e');
  }
  const JobOutcome outcome = run(scheduler_, job(file.layout, memory, file));
  ASSERT_EQ(outcome.failures.size(), 1u);
  EXPECT_EQ(outcome.failures[0].index, 3u);
  EXPECT_EQ(outcome.failures[0].error.code, ErrorCode::checksum_mismatch);
}

TEST_F(SlotFileTest, HeadersNameTheBlocksOfTheSlots) {
  {
    SlotFile file = std::move(open_slot_file(options()).value());
    EXPECT_TRUE(file.is_new);
    const BlockLayout memory =
        storage_.make(StorageKind::pinned, Arrangement::contiguous, Storage::small_shape(7));
    for (std::uint32_t i = 0; i < 7; ++i) storage_.write_block(memory, i, pattern(i, 240));
    TransferJob stored = job(memory, file.layout, file);
    for (int i = 0; i < 7; ++i) {
      SlotHeader header;
      if (i % 2 == 0) header.block.key = "key" + std::to_string(i);
      stored.headers.push_back(header);
    }
    ASSERT_EQ(run(scheduler_, std::move(stored)).state, JobState::done);
    // A block gets its key later.
    TransferJob labelled = job(file.layout, file.layout, file);
    labelled.operation = JobOperation::write_header;
    labelled.pairs = {{1, 1}};
    labelled.headers = {SlotHeader{.block = {.key = "late"}}};
    ASSERT_EQ(run(scheduler_, std::move(labelled)).state, JobState::done);
  }
  SlotFile again = std::move(open_slot_file(options()).value());
  EXPECT_FALSE(again.is_new);
  const SystemClock clock;
  MediumCodec codec({.clock = clock});
  const auto scan = scan_headers({disk_, again.layout, *again.slots, codec});
  ASSERT_TRUE(scan);
  std::vector<std::string> found;
  for (const SlotHeader& header : scan->headers) found.push_back(header.block.key);
  EXPECT_EQ(found, (std::vector<std::string>{"key0", "late", "key2", "key4", "key6"}));
  EXPECT_EQ(scan->torn, 0u);
}

TEST_F(SlotFileTest, AFailedCallFailsOnlyItsBlocks) {
  SlotFile file = std::move(open_slot_file(options()).value());
  const BlockLayout memory =
      storage_.make(StorageKind::pinned, Arrangement::contiguous, Storage::small_shape(7));
  const BlockLayout back =
      storage_.make(StorageKind::pinned, Arrangement::contiguous, Storage::small_shape(7));
  for (std::uint32_t i = 0; i < 7; ++i) storage_.write_block(memory, i, pattern(i, 240));
  for (std::uint64_t failing = 1; failing < 12; ++failing) {
    ASSERT_EQ(run(scheduler_, job(memory, file.layout, file)).state, JobState::done);
    disk_.fail_call(failing);
    const JobOutcome stored = run(scheduler_, job(memory, file.layout, file));
    disk_.fail_call(failing);
    const JobOutcome loaded = run(scheduler_, job(file.layout, back, file));
    disk_.fail_call(0);
    std::vector<bool> unsure(7);
    for (const auto& failure : stored.failures) unsure[failure.index] = true;
    for (const auto& failure : loaded.failures) unsure[failure.index] = true;
    for (std::uint32_t i = 0; i < 7; ++i) {
      if (unsure[i]) continue;
      EXPECT_TRUE(same(storage_.read_block(back, i), pattern(i, 240))) << failing;
    }
  }
}

TEST_F(SlotFileTest, OneLabelPageReplacesTheOtherIfDamaged) {
  {
    const SlotFile file = std::move(open_slot_file(options()).value());
    ASSERT_TRUE(describe_slot_file(options().paths, file.layout, "what it is"));
  }
  for (std::size_t at = 0; at < kSlotFileLabelBytes; ++at) {
    const std::size_t in_page = at % 4096;
    const bool counts = in_page < 160 + std::string_view("what it is").size();
    if (!counts && in_page != 4095) continue;
    std::fstream raw(options().paths[1], std::ios::in | std::ios::out | std::ios::binary);
    raw.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(raw.get() ^ 0x20);
    raw.seekp(static_cast<std::streamoff>(at)).put(byte);
    raw.close();
    const auto found = find_slot_file_label(options().paths[1]);
    ASSERT_TRUE(found && *found) << at;
    EXPECT_EQ((*found)->damaged, counts) << at;
    EXPECT_EQ((*found)->label.description, "what it is") << at;
    const auto file = open_slot_file(options());
    ASSERT_TRUE(file) << at;
    EXPECT_FALSE(file->is_new);
    EXPECT_EQ(file->damage.size(), counts ? 1u : 0u) << at;
    EXPECT_FALSE((*find_slot_file_label(options().paths[1]))->damaged)
        << "opening repairs the label";
  }
}

TEST_F(SlotFileTest, ReportsTruncation) {
  SlotFileOptions one = options();
  one.paths.pop_back();
  { ASSERT_TRUE(open_slot_file(one)); }
  const auto whole = std::filesystem::file_size(one.paths[0]);
  for (const std::uintmax_t left :
       {whole - 1, kSlotFileLabelBytes, std::uint64_t{4096}, std::uint64_t{4095}}) {
    std::filesystem::resize_file(one.paths[0], left);
    const auto file = open_slot_file(one);
    ASSERT_TRUE(file) << left;
    EXPECT_FALSE(file->is_new) << left;
    EXPECT_NE(file->damage.back().find("cut off after " + std::to_string(left)), std::string::npos);
    EXPECT_EQ(std::filesystem::file_size(one.paths[0]), whole);
  }
  // Without a label, the file is new.
  for (const std::uintmax_t left : {100u, 7u, 0u}) {
    std::filesystem::resize_file(one.paths[0], left);
    const auto file = open_slot_file(one);
    ASSERT_TRUE(file) << left;
    EXPECT_TRUE(file->is_new) << left;
    EXPECT_EQ(file->damage.size(), 1u) << left;
  }
}

TEST_F(SlotFileTest, KeepsADescriptionUpToTheLimit) {
  const SlotFile file = std::move(open_slot_file(options()).value());
  const std::string longest(kMaxDescriptionBytes, 'd');
  ASSERT_TRUE(describe_slot_file(options().paths, file.layout, longest));
  for (const auto& path : options().paths) {
    EXPECT_EQ((*find_slot_file_label(path))->label.description, longest);
  }
  EXPECT_EQ(describe_slot_file(options().paths, file.layout, longest + "d").error().code,
            ErrorCode::impossible);
}

TEST_F(SlotFileTest, RefusesAnotherOwnersOrShapesFileAndKeepsIt) {
  { ASSERT_TRUE(open_slot_file(options())); }
  auto other = options();
  other.shape.page_size += 1;
  const auto shape = open_slot_file(other);
  ASSERT_FALSE(shape);
  EXPECT_EQ(shape.error().code, ErrorCode::state_conflict);
  EXPECT_NE(shape.error().detail.find("page_size " + std::to_string(other.shape.page_size)),
            std::string::npos);
  EXPECT_NE(shape.error().detail.find("page_size " + std::to_string(other.shape.page_size - 1)),
            std::string::npos);
  other = options();
  other.owner = "another";
  EXPECT_EQ(open_slot_file(other).error().code, ErrorCode::state_conflict);
  {
    const SlotFile held = std::move(open_slot_file(options()).value());
    EXPECT_EQ(open_slot_file(options()).error().code, ErrorCode::state_conflict);
  }
  EXPECT_FALSE(open_slot_file(options())->is_new);
  other = options();
  other.shape.page_size += 1;
  other.replace_other_shape = true;
  EXPECT_TRUE(open_slot_file(other)->is_new);
}

TEST_F(SlotFileTest, RefusesAnotherVersionAndNamesIt) {
  constexpr std::streamoff kVersionInLabel = 16;
  { ASSERT_TRUE(open_slot_file(options())); }
  for (const std::streamoff page : {0, 4096}) {
    std::fstream(folder_.path() / "a", std::ios::in | std::ios::out | std::ios::binary)
        .seekp(page + kVersionInLabel)
        .put('\x02');
  }
  const auto refused = open_slot_file(options());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::state_conflict);
  EXPECT_NE(refused.error().detail.find("version 2;"), std::string::npos) << refused.error().detail;
}

}  // namespace
}  // namespace cairn::test
