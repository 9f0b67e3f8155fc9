// A disk tier with a codec: shorter blocks leave room for more of them.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "tests/blockmgr/disk_restart.hpp"
#include "tests/blockmgr/snapshot_rig.hpp"
#include "tests/fakes/faked_disk.hpp"
#include "tests/fakes/faulty_disk_io.hpp"

namespace cairn::testing {
namespace {

using ::testing::IsSupersetOf;
using ::testing::UnorderedElementsAreArray;

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kBlockBytes = 32 * kPageBytes;
constexpr std::uint32_t kBlocks = 16;
// What lies before the slots of a file.
constexpr std::uint64_t kLabelBytes = 2 * kPageBytes;
// With a page in which the file system lists what it has of the file.
constexpr std::uint64_t room_of(std::uint64_t blocks) {
  return blocks * (kBlockBytes + kPageBytes) + kPageBytes;
}

// Numbers in bf16 of a normal distribution, as keys and values have.
Bytes numbers_of(const BlockKey& key, std::uint64_t size) {
  std::minstd_rand random(static_cast<unsigned>(bytes_of(key, 1)[0]) + 1);
  std::normal_distribution<float> normal;
  Bytes bytes = bytes_of(key, size);  // the mantissas are noise
  for (std::size_t i = 1; i < bytes.size(); i += 2) {
    bytes[i] = static_cast<std::byte>(std::bit_cast<std::uint32_t>(normal(random)) >> 24);
  }
  return bytes;
}

CacheConfig config_with(Codec codec) {
  CacheConfig config = small_cache({.pinned = 2, .disk = kBlocks});
  config.shape.inner_dim = kBlockBytes / block_bytes(config.shape) * config.shape.inner_dim;
  config.tiers[index_of(Tier::disk)]->codec = codec;
  return config;
}

// The bytes that a folder's slot file takes on its disk, without its label.
std::uint64_t bytes_taken(const std::filesystem::path& folder) {
  struct ::stat status {};
  EXPECT_EQ(::stat((folder / "disk/test").c_str(), &status), 0);
  constexpr std::uint64_t kStatBlockBytes = 512;
  return static_cast<std::uint64_t>(status.st_blocks) * kStatBlockBytes - kLabelBytes;
}

// A hole is made while others already use its room, so the file may be larger for a moment.
::testing::AssertionResult stays_within(const std::filesystem::path& folder,
                                        std::uint64_t room_bytes) {
  for (int looks = 0; bytes_taken(folder) > room_bytes; ++looks) {
    if (looks == 5000) {
      return ::testing::AssertionFailure() << bytes_taken(folder) << " bytes of " << room_bytes;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return ::testing::AssertionSuccess();
}

class DiskCodec : public DiskRestart {
 protected:
  DiskCodec() : DiskRestart(config_with(Codec::bytes)) {}

  Result<> put_one(Cache& cache, std::uint64_t number,
                   Bytes (*bytes)(const BlockKey&, std::uint64_t)) {
    return rig_.put(cache, {.keys = keys(number, 1), .tier = Tier::disk, .bytes = bytes});
  }
  void put_numbers(std::uint64_t first, std::size_t count) { put_each(first, count, numbers_of); }
  void put_noise(std::uint64_t first, std::size_t count) { put_each(first, count, bytes_of); }
  void put_each(std::uint64_t first, std::size_t count,
                Bytes (*bytes)(const BlockKey&, std::uint64_t)) {
    for (std::uint64_t i = first; i < first + count; ++i) {
      ASSERT_TRUE(put_one(*cache_, i, bytes));
      EXPECT_TRUE(stays_within(rig_.dir.path(), room_of(kBlocks)));
    }
  }
  // The number of blocks, each of which has its bytes.
  std::size_t whole(Cache& cache, Bytes (*bytes)(const BlockKey&, std::uint64_t) = numbers_of) {
    const std::vector<BlockKey> list = present_in(cache, Tier::disk);
    for (const BlockKey& each : list) {
      const auto read = rig_.read(cache, each);
      EXPECT_TRUE(read) << read.error().detail;
      if (!read) continue;
      EXPECT_TRUE(*read == bytes(each, kBlockBytes));
    }
    return list.size();
  }
};

TEST_F(DiskCodec, TheSameRoomHoldsMoreBlocks) {
  put_numbers(1, 60);
  EXPECT_GE(whole(*cache_), kBlocks * 135 / 100);
  EXPECT_EQ(cache_->stats().tiers[index_of(Tier::disk)].capacity_blocks, kBlocks);
}

TEST_F(DiskCodec, BlocksThatDoNotShrinkGetTheirRoomBack) {
  put_numbers(1, 60);
  put_noise(101, 60);
  EXPECT_EQ(whole(*cache_, bytes_of), kBlocks);
  put_numbers(201, 60);
  EXPECT_GE(whole(*cache_), kBlocks * 135 / 100);
}

TEST_F(DiskCodec, ASlotThatIsBeingFilledCountsWhole) {
  put_numbers(1, 60);
  const auto held = rig_.allocate(*cache_, {.count = kBlocks, .tier = Tier::disk});
  ASSERT_TRUE(held) << held.error().detail;
  EXPECT_EQ(rig_.allocate(*cache_, {.count = 1, .tier = Tier::disk}).error().code,
            ErrorCode::no_capacity);
  ASSERT_TRUE(cache_->release(held->lease, {}));
  put_numbers(101, 60);
  EXPECT_GE(whole(*cache_), kBlocks * 135 / 100);
}

TEST_F(DiskCodec, BlocksSurviveAKill) {
  put_numbers(1, 60);
  const auto before = present_in(*cache_, Tier::disk);
  crash_and_restart();
  EXPECT_THAT(there(), UnorderedElementsAreArray(before));
  EXPECT_EQ(whole(*back_), before.size());
  EXPECT_TRUE(stays_within(copy_->path(), room_of(kBlocks))) << "a copy has no holes";
  cache_ = back_;
  for (std::uint64_t i = 101; i < 160; ++i) ASSERT_TRUE(put_one(*cache_, i, numbers_of));
  EXPECT_GE(whole(*cache_), kBlocks * 135 / 100);
  EXPECT_TRUE(stays_within(copy_->path(), room_of(kBlocks)));
}

TEST_F(DiskCodec, HeadersAloneRestoreThem) {
  put_numbers(1, 60);
  const auto before = present_in(*cache_, Tier::disk);
  const auto folder = crash();
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename() != "test") std::filesystem::remove(entry.path());
  }
  restart();
  EXPECT_THAT(there(), IsSupersetOf(before));
  EXPECT_GE(whole(*back_), before.size());
}

TEST_F(DiskCodec, ATierLosesAndGetsItsCodecAtARestart) {
  put_numbers(1, 60);
  const auto before = present_in(*cache_, Tier::disk);
  config_ = config_with(Codec::none);
  crash_and_restart();
  const auto kept = there();
  EXPECT_EQ(kept.size(), kBlocks);
  EXPECT_THAT(before, IsSupersetOf(kept));
  EXPECT_EQ(whole(*back_), kBlocks);
  ASSERT_TRUE(put_one(*back_, 101, numbers_of));
  EXPECT_EQ(whole(*back_), kBlocks);

  after_->checkpoint();
  back_.reset();
  config_ = config_with(Codec::bytes);
  restart();
  EXPECT_EQ(whole(*back_), kBlocks);
  for (std::uint64_t i = 201; i < 260; ++i) ASSERT_TRUE(put_one(*back_, i, numbers_of));
  EXPECT_GE(whole(*back_), kBlocks * 135 / 100);
  EXPECT_TRUE(stays_within(copy_->path(), room_of(kBlocks)));
}

TEST_F(DiskCodec, ASmallerTierKeepsWhatFits) {
  const auto resize = [&](std::uint32_t blocks) {
    CacheChange change;
    change.num_blocks[index_of(Tier::disk)] = blocks;
    return cache_->change(change, [](const CacheConfig&) { return Result<>(); });
  };
  put_numbers(1, 60);
  ASSERT_TRUE(resize(kBlocks / 2));
  rig_.manager->tick();
  rig_.scheduler->wait_idle();
  EXPECT_GE(whole(*cache_), kBlocks / 2 * 125 / 100);
  EXPECT_TRUE(stays_within(rig_.dir.path(), room_of(kBlocks / 2)));
  for (std::uint64_t i = 101; i < 130; ++i) ASSERT_TRUE(put_one(*cache_, i, bytes_of));
  EXPECT_EQ(whole(*cache_, bytes_of), kBlocks / 2);
  EXPECT_TRUE(stays_within(rig_.dir.path(), room_of(kBlocks / 2)));
  ASSERT_TRUE(resize(kBlocks));
  put_numbers(201, 60);
  EXPECT_GE(whole(*cache_), kBlocks * 135 / 100);
}

TEST_F(DiskCodec, AFlippedByteOfAShortBlockIsRefused) {
  put_numbers(1, 4);
  const auto path = crash() / "test";
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  for (std::uint64_t slot = 0; slot < 4; ++slot) {
    // In the head, in the lengths of the planes, and twice in the planes.
    const std::uint64_t at = kLabelBytes + slot * (kBlockBytes + kPageBytes) + kPageBytes +
                             std::array<std::uint64_t, 4>{0, 9, 1000, 12'345}[slot];
    file.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(~byte));
  }
  file.close();
  restart();
  for (const BlockKey& each : keys(1, 4)) {
    EXPECT_EQ(rig_.read(*back_, each).error().code, ErrorCode::checksum_mismatch);
  }
}

TEST(DiskCodecSnapshot, ATierWithShortBlocksComesBackWhole) {
  SnapshotRig rig({.options = by_hand()});
  const auto cache = rig.cache(config_with(Codec::bytes));
  for (std::uint64_t i = 1; i <= 60; ++i) {
    ASSERT_TRUE(rig.put(*cache, {.keys = keys(i, 1), .tier = Tier::disk, .bytes = numbers_of}));
  }
  const auto before = present_in(*cache, Tier::disk);
  ASSERT_GT(before.size(), kBlocks);
  ASSERT_TRUE(rig.make(cache, "full"));
  ASSERT_TRUE(rig.put(*cache, {.keys = keys(101, 1), .tier = Tier::disk, .bytes = bytes_of}));
  const auto replaced = rig.replace(cache, "full");
  ASSERT_TRUE(replaced) << replaced.error().detail;
  EXPECT_THAT(present_in(*cache, Tier::disk), UnorderedElementsAreArray(before));
  ASSERT_TRUE(cache->clear({}));
  const auto restored = rig.restore(cache, "full");
  ASSERT_TRUE(restored) << restored.error().detail;
  EXPECT_THAT(present_in(*cache, Tier::disk), UnorderedElementsAreArray(before));
  EXPECT_TRUE(stays_within(rig.dir.path(), room_of(kBlocks)));
}

// Blocks of two sizes share the slots: what one of them leaves, others take.
TEST(DiskCodecGroups, BlocksOfSeveralSizesStayWithinTheirRoom) {
  CacheConfig config = small_cache({.disk = 60});
  config.shape = {};
  config.block_tokens = 1;
  const auto add_group = [&](const char* name, KvGroupKind kind, std::uint64_t pages) {
    KvGroupConfig group{.name = name, .kind = kind};
    group.shape = {.num_layers = 1,
                   .outer_dim = 1,
                   .page_size = 1,
                   .inner_dim = pages * kPageBytes / 2,
                   .dtype_width_bytes = 2};
    config.kv_groups.push_back(group);
  };
  add_group("full", KvGroupKind::full, 8);
  add_group("state", KvGroupKind::state, 29);
  config.tiers[index_of(Tier::disk)] = TierConfig{.size_bytes = 4u << 20, .codec = Codec::bytes};
  Rig rig({.options = by_hand()});
  const auto cache = rig.cache(config);
  std::mt19937 random(5);
  const auto bytes = [&](const BlockKey& block) {
    const std::uint64_t size = block_bytes(config.shape_of(block.kv_group()));
    return bytes_of(block, 1)[0] < std::byte{100} ? bytes_of(block, size) : numbers_of(block, size);
  };
  std::size_t most = 0;
  for (std::uint64_t number = 0; number < 900; ++number) {
    // Long stretches of one size, so that slabs change theirs.
    const auto group = static_cast<KvGroupNumber>(random() % 100 < (number / 150 % 2 * 80 + 10));
    const BlockKey block(key(number).view().in(group));
    AllocateRequest request{.count = 1, .tier = Tier::disk};
    request.group_counts.assign(group + std::size_t{1}, 0);
    request.group_counts.back() = 1;
    const auto lease = rig.allocate(*cache, request);
    ASSERT_TRUE(lease) << lease.error().detail;
    const BlockHandle handle = lease->blocks.front();
    ASSERT_TRUE(rig.write(*cache, {.lease = lease->lease, .block = handle}, bytes(block)));
    ASSERT_TRUE(rig.commit(*cache, lease->lease, {{.handle = handle, .key = block}}));
    ASSERT_TRUE(cache->release(lease->lease, {}));
    rig.scheduler->wait_idle();
    EXPECT_TRUE(stays_within(rig.dir.path(), (4u << 20) + kPageBytes));
    if (number % 50 != 49) continue;
    std::size_t taken = 0;
    for (const BlockKey& each : present_in(*cache, Tier::disk)) {
      const auto read = rig.read(*cache, each);
      ASSERT_TRUE(read) << read.error().detail;
      EXPECT_TRUE(*read == bytes(each));
      taken += read->size();
    }
    most = std::max(most, taken);
  }
  EXPECT_GT(most, 4u << 20) << "some blocks are shorter";
}

// With every call of the disk failing in turn, holes too.
TEST(DiskCodecFaults, NoFailedCallMakesAWrongByteOrLosesRoom) {
  fakes::FakedDisk<fakes::FaultyDiskIo> disk;
  Rig rig({.disk = disk.wrap(), .options = by_hand()});
  const auto cache = rig.cache(config_with(Codec::bytes));
  const auto put = [&](std::uint64_t number, Bytes (*bytes)(const BlockKey&, std::uint64_t)) {
    return rig.put(*cache, {.keys = keys(number, 1), .tier = Tier::disk, .bytes = bytes});
  };
  std::uint64_t number = 0;
  const auto fill = [&](Bytes (*bytes)(const BlockKey&, std::uint64_t)) {
    for (int i = 0; i < 30; ++i) static_cast<void>(put(++number, bytes));
  };
  for (std::uint64_t failing = 1; failing < 40; ++failing) {
    disk->fail_call(failing);
    fill(failing % 2 == 0 ? numbers_of : bytes_of);
    fill(failing % 2 == 0 ? bytes_of : numbers_of);
    disk->fail_call(0);
    // A put that failed keeps its lease, and a hole that failed is not tried at once.
    rig.clock.advance(std::chrono::seconds(60));
    rig.manager->tick();
    for (const BlockKey& each : present_in(*cache, Tier::disk)) {
      const auto read = rig.read(*cache, each);
      if (!read) continue;
      EXPECT_TRUE(*read == bytes_of(each, kBlockBytes) || *read == numbers_of(each, kBlockBytes));
    }
  }
  fill(numbers_of);
  EXPECT_GE(present_in(*cache, Tier::disk).size(), kBlocks * 135 / 100);
  EXPECT_TRUE(stays_within(rig.dir.path(), room_of(kBlocks)));
}

}  // namespace
}  // namespace cairn::testing
