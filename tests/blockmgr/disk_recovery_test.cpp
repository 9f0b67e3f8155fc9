// Starts over a disk tier whose slots and index disagree.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>

#include "base/hash.hpp"
#include "blockmgr/disk/slot_journal.hpp"
#include "tests/blockmgr/disk_restart.hpp"
#include "transport/io/slot_file_label.hpp"
#include "transport/io/slot_header.hpp"

namespace cairn::testing {
namespace {

using ::testing::UnorderedElementsAreArray;

// The rig's slot file: label pages, then for each slot a page of header and a page of block.
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kSlotBytes = 2 * kPage;
constexpr std::uint64_t kBootInLog = 72;

using Page = std::array<std::byte, kSlotHeaderBytes>;

class DiskRecovery : public DiskRestart {
 protected:
  Page page_at(std::uint64_t offset) const {
    Page page{};
    std::ifstream file(slots(), std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    file.read(reinterpret_cast<char*>(page.data()), kSlotHeaderBytes);
    return page;
  }
  void put_page(std::uint64_t offset, const Page& page) const {
    std::fstream file(slots(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(reinterpret_cast<const char*>(page.data()), kSlotHeaderBytes);
  }
  static std::uint64_t header_at(std::uint64_t slot) {
    return kSlotFileLabelBytes + slot * kSlotBytes;
  }
  SlotHeader header_of(std::uint64_t slot) const {
    return decode_slot_header(page_at(header_at(slot))).value();
  }
  void put_header(const SlotHeader& header) const {
    Page page{};
    encode_slot_header(header, page);
    put_page(header_at(header.place.slot), page);
  }
  // Writes the header again into an empty slot, with another stamp and without a block behind it.
  struct Relabelled {
    std::uint64_t slot = 0;
    std::uint64_t stamp = 0;
  };
  void put_again(SlotHeader header, const Relabelled& as) const {
    header.place.slot = as.slot;
    header.place.stamp = as.stamp;
    put_header(header);
  }
  void lose_index() const {
    for (const auto& entry : std::filesystem::directory_iterator(slots().parent_path())) {
      if (entry.path().filename().string().starts_with("test~")) {
        std::filesystem::remove(entry.path());
      }
    }
  }
  // Kills the server that runs now. The next start uses what it left.
  void crash_again() {
    rig_.scheduler->wait_idle();
    auto next = std::make_unique<fakes::TempDir>();
    std::filesystem::copy(copy_->path(), next->path(), std::filesystem::copy_options::recursive);
    back_.reset();
    after_.reset();
    copy_ = std::move(next);
  }
  std::filesystem::path slots() const { return copy_->path() / "disk/test"; }
};

// A transfer writes header and block in one write. A kill may leave only its beginning.
TEST_F(DiskRecovery, TornBlockDoesNotHideAWholeOne) {
  put(keys(1, 3));
  crash();
  const SlotHeader first = header_of(1);
  ASSERT_EQ(first.place.slot, 1u);
  put_again(first, {.slot = 9, .stamp = first.place.stamp + 1000});
  lose_index();
  restart();
  EXPECT_THAT(there(), UnorderedElementsAreArray(keys(1, 3)));
  expect_whole(keys(1, 3));
}

TEST_F(DiskRecovery, WholeBlockWinsOverSeveralTornOnes) {
  put(keys(1, 3));
  crash();
  const SlotHeader first = header_of(2);
  const std::uint64_t stamp = first.place.stamp;
  put_again(first, {.slot = 7, .stamp = stamp + 1});
  put_again(first, {.slot = 8, .stamp = stamp + 1001});
  put_again(first, {.slot = 9, .stamp = stamp + 1002});
  put_again(first, {.slot = 10, .stamp = 1});  // the oldest
  lose_index();
  restart();
  EXPECT_THAT(there(), UnorderedElementsAreArray(keys(1, 3)));
  expect_whole(keys(1, 3));
}

TEST_F(DiskRecovery, LaterOfTwoWholeBlocksWins) {
  put(keys(1, 1));
  crash();
  Page bytes{};
  bytes.fill(std::byte{0x77});
  SlotHeader later = header_of(0);
  later.block.data_checksum = hash_bytes(std::span(bytes).first(64), 0);
  put_again(later, {.slot = 9, .stamp = later.place.stamp + 1000});
  put_page(header_at(9) + kPage, bytes);
  lose_index();
  restart();
  EXPECT_EQ(*rig_.read(*back_, key(1)), Bytes(64, std::byte{0x77}));
}

// Once both headers had the key. When the log was lost, the later block won, though it was the
// duplicate.
TEST_F(DiskRecovery, DuplicateInOneCommitDoesNotReturn) {
  const Bytes first(64, std::byte{0x11});
  const Bytes second(64, std::byte{0x22});
  const Allocation slots = rig_.allocate(*cache_, {.count = 2, .tier = Tier::disk}).value();
  ASSERT_TRUE(rig_.write(*cache_, {.lease = slots.lease, .block = slots.blocks[0]}, first));
  ASSERT_TRUE(rig_.write(*cache_, {.lease = slots.lease, .block = slots.blocks[1]}, second));
  const auto done = rig_.commit(
      *cache_, slots.lease,
      {{.handle = slots.blocks[0], .key = key(1)}, {.handle = slots.blocks[1], .key = key(1)}});
  EXPECT_EQ(done.value(),
            (std::vector<CommitStatus>{CommitStatus::committed, CommitStatus::duplicate}));
  crash();
  lose_index();
  restart();
  EXPECT_EQ(*rig_.read(*back_, key(1)), first);
}

// The same with two concurrent commits: the second waits until it is known which block stays.
TEST_F(DiskRecovery, FirstOfTwoConcurrentCommitsReturns) {
  constexpr auto kWhere = std::to_array({Tier::disk, Tier::disk, Tier::pinned});
  std::array<Allocation, kWhere.size()> slots;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    slots[i] = rig_.allocate(*cache_, {.count = 1, .tier = kWhere[i]}).value();
    ASSERT_TRUE(rig_.write(*cache_, {.lease = slots[i].lease, .block = slots[i].blocks[0]},
                           Bytes(64, static_cast<std::byte>(0x11 + i))));
  }
  std::array<std::optional<CommitStatus>, kWhere.size()> statuses;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    cache_->commit(slots[i].lease, {{.handle = slots[i].blocks[0], .key = key(1)}},
                   [&status = statuses[i]](Result<std::vector<CommitStatus>> done) {
                     status = done.value().front();
                   });
  }
  rig_.scheduler->wait_idle();
  EXPECT_EQ(statuses[0], CommitStatus::committed);
  EXPECT_EQ(statuses[1], CommitStatus::duplicate);
  EXPECT_EQ(statuses[2], CommitStatus::duplicate);
  crash();
  lose_index();
  restart();
  EXPECT_EQ(*rig_.read(*back_, key(1)), Bytes(64, std::byte{0x11}));
}

// Starts a server over a copy of the rig's files, without the index, and reads the key.
void expect_there_without_index(Rig& rig, const CacheConfig& config, std::uint64_t number) {
  const fakes::TempDir copy;
  std::filesystem::copy(
      rig.dir.path(), copy.path(),
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  for (const auto& entry : std::filesystem::directory_iterator(copy.path() / "disk")) {
    if (entry.path().filename().string().starts_with("test~")) {
      std::filesystem::remove(entry.path());
    }
  }
  BlockManagerOptions options = by_hand();
  options.data_dir = copy.path();
  BlockManager after(*rig.runtime, *rig.scheduler, rig.clock, *rig.log, options);
  const auto back = after.create_cache(config).value().cache;
  EXPECT_EQ(rig.read(*back, key(number)).value(), bytes_of(key(number)));
}

// A commit of key 1, which exists, with a callback once its headers are written.
struct CommitOfAKeyThatIsThere {
  explicit CommitOfAKeyThatIsThere() {
    // Runs on the scheduler's threads.
    options.failpoint = [this](std::string_view place) {
      if (place != "commit.header_written") return;
      std::function<void()> act;
      {
        const std::lock_guard lock(mutex);
        act = std::exchange(at_headers, {});
      }
      if (act) act();
    };
    rig.emplace(Rig::Parts{.options = options});
    cache = rig->cache(config);
  }
  // Allocates slots and writes these keys' bytes.
  Allocation written(const std::vector<std::uint64_t>& keys) {
    Allocation slots = rig->allocate(*cache, {.count = static_cast<std::uint32_t>(keys.size()),
                                              .tier = Tier::disk})
                           .value();
    for (std::size_t i = 0; i < keys.size(); ++i) {
      EXPECT_TRUE(rig->write(*cache, {.lease = slots.lease, .block = slots.blocks[i]},
                             bytes_of(key(keys[i]))));
    }
    return slots;
  }

  void once_headers_are_written(std::function<void()> act) {
    const std::lock_guard lock(mutex);
    at_headers = std::move(act);
  }

  std::mutex mutex;
  std::function<void()> at_headers;  // under the mutex
  BlockManagerOptions options = by_hand();
  const CacheConfig config = small_cache({.disk = 16});
  std::optional<Rig> rig;
  std::shared_ptr<Cache> cache;
};

// Found by the simulation: a commit of an existing key leaves a header without a name. The key was
// erased during that write, so the new block stayed. A start without an index did not find it.
TEST(CommitHeaders, HeaderNamesAKeyErasedDuringItsCommit) {
  CommitOfAKeyThatIsThere test;
  ASSERT_TRUE(test.rig->put(*test.cache, {.keys = {key(1)}, .tier = Tier::disk}));
  const Allocation slot = test.written({1});
  test.once_headers_are_written([&] { ASSERT_TRUE(test.cache->erase(key(1))); });
  const auto done =
      test.rig->commit(*test.cache, slot.lease, {{.handle = slot.blocks[0], .key = key(1)}});
  ASSERT_EQ(done.value(), std::vector<CommitStatus>{CommitStatus::committed});
  expect_there_without_index(*test.rig, test.config, 1);
}

// Found by the simulation: the first of two commits left a header without a name. It did not name
// it later, since the second was about to commit the key. It did not wait for the second either,
// since it had taken another key.
TEST(CommitHeaders, HeaderNamesAKeyTakenByAnotherCommit) {
  // About one round in four has the order of events that went wrong.
  for (int round = 0; round < 12; ++round) {
    CommitOfAKeyThatIsThere test;
    ASSERT_TRUE(test.rig->put(*test.cache, {.keys = {key(1)}, .tier = Tier::disk}));
    const Allocation first = test.written({1, 20});
    const Allocation second = test.written({1});
    std::optional<Result<std::vector<CommitStatus>>> other;
    test.once_headers_are_written([&] {
      ASSERT_TRUE(test.cache->erase(key(1)));
      test.cache->commit(second.lease, {{.handle = second.blocks[0], .key = key(1)}},
                         [&](Result<std::vector<CommitStatus>> done) { other = std::move(done); });
    });
    const auto one = test.rig->commit(
        *test.cache, first.lease,
        {{.handle = first.blocks[0], .key = key(1)}, {.handle = first.blocks[1], .key = key(20)}});
    test.rig->scheduler->wait_idle();
    // Either commit may win.
    EXPECT_NE(one.value().front(), other->value().front());
    ASSERT_TRUE(test.cache->release(first.lease));
    ASSERT_TRUE(test.cache->release(second.lease));
    // These blocks reuse the duplicate's slot.
    std::vector<BlockKey> others;
    for (std::uint64_t i = 2; i <= 15; ++i) others.push_back(key(i));
    ASSERT_TRUE(test.rig->put(*test.cache, {.keys = others, .tier = Tier::disk}));
    expect_there_without_index(*test.rig, test.config, 1);
  }
}

// Found by the crash harness: a power cut lost the header of a block that the log knew. When the
// index was damaged later, the block was lost.
TEST_F(DiskRecovery, RewritesAHeaderLostInAPowerCut) {
  put(keys(1, 3));
  crash();
  put_page(header_at(1), Page{});
  {
    std::fstream log(slots().string() + "~log.1", std::ios::binary | std::ios::in | std::ios::out);
    log.seekp(kBootInLog);
    log << "another.";
  }
  restart();
  expect_whole(keys(1, 3));
  crash_again();
  lose_index();
  restart();
  EXPECT_THAT(there(), UnorderedElementsAreArray(keys(1, 3)));
  expect_whole(keys(1, 3));
}

TEST_F(DiskRecovery, RewritesALostHeaderBesideATornLog) {
  put(keys(1, 3));
  crash();
  put_page(header_at(1), Page{});
  std::filesystem::resize_file(slots().string() + "~log.1",
                               std::filesystem::file_size(slots().string() + "~log.1") - 1);
  restart();
  expect_whole(keys(1, 3));
  crash_again();
  lose_index();
  restart();
  EXPECT_THAT(there(), UnorderedElementsAreArray(keys(1, 3)));
}

std::string long_text(std::uint64_t number) {
  return "\"" + std::string(4'000, static_cast<char>('a' + number % 26)) + "\"";
}

// The log of a small tier is 1 MiB. This number of updates fills its spare too.
constexpr std::uint64_t kUpdates = 600;

TEST_F(DiskRecovery, KeepsChangesMadeAfterALogFilled) {
  put(keys(1, 3));
  for (std::uint64_t i = 0; i < kUpdates; ++i)
    ASSERT_TRUE(cache_->set_metadata(key(1), long_text(i)));
  ASSERT_TRUE(cache_->erase(key(2)));
  put(keys(11, 1));
  crash();
  EXPECT_TRUE(std::filesystem::exists(slots().string() + "~log.3"));
  restart();
  EXPECT_THAT(there(), UnorderedElementsAreArray({key(1), key(3), key(11)}));
  EXPECT_EQ(back_->list({.tier = Tier::disk}).value().blocks.front().metadata,
            long_text(kUpdates - 1));
  expect_whole({key(1), key(3), key(11)});
}

TEST_F(DiskRecovery, CheckpointAfterAFullLogMakesASpare) {
  put(keys(1, 3));
  for (std::uint64_t i = 0; i < kUpdates; ++i)
    ASSERT_TRUE(cache_->set_metadata(key(1), long_text(i)));
  for (int i = 0; i < 2; ++i) rig_.manager->checkpoint();
  ASSERT_TRUE(cache_->erase(key(2)));
  const auto folder = crash();
  int logs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    logs += entry.path().filename().string().starts_with("test~log.") ? 1 : 0;
  }
  EXPECT_EQ(logs, 2);
  restart();
  EXPECT_THAT(there(), UnorderedElementsAreArray({key(1), key(3)}));
  EXPECT_EQ(back_->list({.tier = Tier::disk}).value().blocks.front().metadata,
            long_text(kUpdates - 1));
}

TEST(SlotJournal, RepeatedKillsRequestACheckpoint) {
  fakes::TempDir folder;
  const SlotJournal::Options options{.path = folder.path() / "test", .file_id = 7, .num_slots = 4};
  bool wanted = false;
  int starts = 0;
  for (; starts < 20 && !wanted; ++starts) {
    SlotJournal journal(options);
    ASSERT_TRUE(journal.load());
    ASSERT_TRUE(journal.begin());
    wanted = journal.wants_checkpoint();
  }
  EXPECT_TRUE(wanted);
  EXPECT_GT(starts, 2);
}

// A start that read the headers must not leave an incomplete index that looks complete.
TEST_F(DiskRecovery, StaysCompleteAfterADamagedLog) {
  put(keys(1, 3));
  crash();
  {
    std::fstream log(slots().string() + "~log.1", std::ios::binary | std::ios::in | std::ios::out);
    log << "damaged";
  }
  restart();
  ASSERT_TRUE(rig_.put(*back_, {.keys = keys(11, 1), .tier = Tier::disk}));
  crash_again();
  restart();
  EXPECT_THAT(there(), UnorderedElementsAreArray({key(1), key(2), key(3), key(11)}));
}

// A folder in the log's place keeps the start from creating it.
TEST_F(DiskRecovery, CacheOpensOnceItsLogCanBeCreated) {
  put(keys(1, 3));
  crash();
  const std::filesystem::path log = slots().string() + "~log.3";
  std::filesystem::create_directory(log);
  BlockManagerOptions options = by_hand();
  options.data_dir = copy_->path();
  after_ = std::make_unique<BlockManager>(*rig_.runtime, *rig_.scheduler, rig_.clock, *rig_.log,
                                          options);
  const auto refused = after_->create_cache(config_);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().detail, ::testing::HasSubstr("test~log.3"));
  std::filesystem::remove(log);
  back_ = after_->create_cache(config_).value().cache;
  EXPECT_THAT(there(), UnorderedElementsAreArray(keys(1, 3)));
  expect_whole(keys(1, 3));
}

// Limits files to the size of a small tier's slot file, as a disk without room for a log does.
class NoRoomForLogs {
 public:
  NoRoomForLogs() : before_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &limit_);
    set(512u << 10);
  }
  ~NoRoomForLogs() {
    set(limit_.rlim_cur);
    ::signal(SIGXFSZ, before_);
  }
  NoRoomForLogs(const NoRoomForLogs&) = delete;
  NoRoomForLogs& operator=(const NoRoomForLogs&) = delete;

 private:
  void set(::rlim_t bytes) const {
    const ::rlimit now{.rlim_cur = bytes, .rlim_max = limit_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &now), 0);
  }

  ::rlimit limit_{};
  void (*before_)(int);
};

TEST_F(DiskRecovery, TierWorksWithoutALogUntilThereIsRoom) {
  put(keys(1, 3));
  crash();
  {
    const NoRoomForLogs full;
    restart();
    expect_whole(keys(1, 3));
    ASSERT_TRUE(rig_.put(*back_, {.keys = keys(11, 1), .tier = Tier::disk}));
    ASSERT_TRUE(back_->erase(key(2)));
  }
  after_->checkpoint();
  ASSERT_TRUE(back_->erase(key(3)));
  crash_again();
  restart();
  EXPECT_THAT(there(), UnorderedElementsAreArray({key(1), key(11)}));
  expect_whole(there());
}

// Without a log only the headers name the new blocks. No later start may trust the earlier log.
TEST_F(DiskRecovery, BlocksStoredWithoutALogSurviveKills) {
  put(keys(1, 3));
  crash();
  for (std::uint64_t n = 11; n <= 12; ++n) {
    {
      const NoRoomForLogs full;
      restart();
      ASSERT_TRUE(rig_.put(*back_, {.keys = keys(n, 1), .tier = Tier::disk}));
    }
    crash_again();
  }
  for (int starts = 0; starts < 2; ++starts) {
    restart();
    EXPECT_THAT(there(), UnorderedElementsAreArray({key(1), key(2), key(3), key(11), key(12)}));
    expect_whole(there());
    crash_again();
  }
}

TEST(UnfinishedSlotFiles, NextStartRemovesThem) {
  fakes::TempDir folder;
  const auto root = folder.path() / "disk";
  std::filesystem::create_directories(root / "deep");
  const auto file = [&](const char* name, const std::string& text) {
    std::ofstream(root / name) << text;
    return root / name;
  };
  const auto zeros = file("a~new", std::string(20'000, '\0'));
  const auto labelled = file("deep/b~new", "CAIRNDSK" + std::string(kSlotFileLabelBytes, 'x'));
  const std::vector<std::filesystem::path> others = {
      file("notes~new", "somebody's words"), file("a", "x"), file("a~index~new", "CAIRNCKP"),
      file("new", "CAIRNDSK")};
  BlockManagerOptions options = by_hand();
  options.data_dir = folder.path();
  Rig rig;
  BlockManager manager(*rig.runtime, *rig.scheduler, rig.clock, *rig.log, options);
  EXPECT_FALSE(std::filesystem::exists(zeros));
  EXPECT_FALSE(std::filesystem::exists(labelled));
  for (const auto& other : others) EXPECT_TRUE(std::filesystem::exists(other)) << other;
}

}  // namespace
}  // namespace cairn::testing
