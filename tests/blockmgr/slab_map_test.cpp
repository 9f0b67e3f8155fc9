// Slots for blocks of several sizes. The tests keep the place of each block in use by themselves,
// and compare.
#include "blockmgr/index/slab_map.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

SlotSizes sizes_of(std::vector<std::uint32_t> units, std::uint32_t slab_units) {
  return {.unit_bytes = 64, .block_units = std::move(units), .slab_units = slab_units};
}

TEST(SlotSizes, BlocksOfOneSizeNeedNoSlabs) {
  EXPECT_FALSE(choose_slot_sizes({4096, 4096}, 64).are_several());
  EXPECT_EQ(choose_slot_sizes({4096, 4096}, 64).unit_bytes, 4096u);
  // A difference below a unit is not worth a size of its own.
  EXPECT_FALSE(choose_slot_sizes({4096, 4000}, 4096).are_several());
}

TEST(SlotSizes, MultiplesOfTheSmallestBlockLoseNothing) {
  const SlotSizes sizes = choose_slot_sizes({1 << 20, 6 << 20, 1 << 20}, 4096);
  EXPECT_EQ(sizes.unit_bytes, std::uint64_t{1} << 20);
  EXPECT_THAT(sizes.block_units, ElementsAre(1, 6, 1));
  EXPECT_EQ(sizes.slab_units, 6u);
}

TEST(SlotSizes, OtherBlocksLoseLittle) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::uint64_t> bytes;
    for (std::uint64_t i = 0; i < 2 + random() % 3; ++i) {
      bytes.push_back((std::uint64_t{64} << 10) + random() % (std::uint64_t{4} << 20));
    }
    const SlotSizes sizes = choose_slot_sizes(bytes, 4096);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const std::uint64_t room = sizes.unit_bytes * sizes.units_of(static_cast<KvGroupNumber>(i));
      ASSERT_GE(room, bytes[i]);
      EXPECT_LE(room - bytes[i], room / 8);
      EXPECT_GE(sizes.slab_units, sizes.units_of(static_cast<KvGroupNumber>(i)));
    }
  }
}

class Slabs : public ::testing::Test {
 protected:
  SlabMap::IsInUse is_in_use() {
    return [this](SlotNumber slot) { return used.contains(slot); };
  }
  SlotNumber take(SlabMap& map, KvGroupNumber group) {
    const SlotNumber slot = map.take(group);
    used.emplace(slot, group);
    return slot;
  }
  void give_back(SlabMap& map, SlotNumber slot) {
    const KvGroupNumber group = used.at(slot);
    used.erase(slot);
    map.give_back(slot, group);
  }

  std::map<SlotNumber, KvGroupNumber> used;
};

TEST_F(Slabs, ASlabWithoutBlocksServesAnotherSize) {
  SlabMap map(sizes_of({1, 4}, 4), 8);
  EXPECT_EQ(map.free_for(0), 8u);
  EXPECT_EQ(map.free_for(1), 2u);
  const SlotNumber small = take(map, 0);
  EXPECT_EQ(map.free_for(1), 1u);
  EXPECT_EQ(map.free_units(), 7u);
  EXPECT_EQ(take(map, 1), 4u);
  EXPECT_EQ(map.free_for(1), 0u);
  EXPECT_EQ(map.free_for(0), 3u);
  EXPECT_EQ(map.slabs_moved(), 0u);
  give_back(map, small);
  EXPECT_EQ(take(map, 1), 0u);
  EXPECT_EQ(map.slabs_moved(), 1u);
  EXPECT_EQ(map.free_units(), 0u);
}

TEST_F(Slabs, ABlockIsRestoredOnlyWhereOneOfItsSizeCanBegin) {
  SlabMap map(sizes_of({1, 2}, 4), 8);
  EXPECT_FALSE(map.take(1, 1)) << "not where a block of two units begins";
  EXPECT_FALSE(map.take(8, 0)) << "beyond the end";
  EXPECT_TRUE(map.take(2, 1));
  EXPECT_FALSE(map.take(2, 1)) << "taken";
  EXPECT_FALSE(map.take(1, 0)) << "the slab has blocks of another size";
  EXPECT_TRUE(map.take(5, 0));
}

TEST_F(Slabs, TheEmptiestSlabOfAnotherSizeIsVacated) {
  SlabMap map(sizes_of({1, 4}, 4), 8);
  std::vector<SlotNumber> small;
  for (int i = 0; i < 8; ++i) small.push_back(take(map, 0));
  for (const SlotNumber slot : {0u, 1u, 5u}) give_back(map, slot);
  const auto any = [](SlotNumber) { return true; };
  EXPECT_EQ(map.to_vacate(1, is_in_use(), any), std::nullopt) << "three slots are no slab";
  give_back(map, 2);
  EXPECT_EQ(map.to_vacate(1, is_in_use(), any), 0u);
  EXPECT_EQ(map.to_vacate(0, is_in_use(), any), std::nullopt) << "blocks of this size have room";
  EXPECT_EQ(map.to_vacate(1, is_in_use(), [](SlotNumber slot) { return slot != 3; }), 1u)
      << "a block that may not move keeps its slab";
  map.close(0);
  EXPECT_EQ(map.free_for(0), 1u);
  EXPECT_THAT(map.used_slots(0, is_in_use()), ElementsAre(3));
  EXPECT_EQ(take(map, 0), 5u) << "not in the closed slab";
  give_back(map, 3);
  EXPECT_EQ(take(map, 1), 0u) << "a closed slab opens when it is empty";
}

TEST_F(Slabs, AReopenedSlabHasItsFreeSlotsAgain) {
  SlabMap map(sizes_of({1, 4}, 4), 4);
  take(map, 0);
  map.close(0);
  EXPECT_EQ(map.free_units(), 0u);
  map.reopen(0, is_in_use());
  EXPECT_EQ(map.free_units(), 3u);
  EXPECT_EQ(take(map, 0), 1u);
}

// The free units if these blocks are in use and all slabs are open.
std::uint32_t expected_free(const std::map<SlotNumber, KvGroupNumber>& used, const SlotSizes& sizes,
                            std::uint32_t units) {
  std::uint32_t free = 0;
  for (std::uint32_t first = 0; first < units; first += sizes.slab_units) {
    std::uint32_t blocks = 0;
    std::uint32_t size = 0;
    for (std::uint32_t slot = first; slot < first + sizes.slab_units; ++slot) {
      if (!used.contains(slot)) continue;
      ++blocks;
      size = sizes.units_of(used.at(slot));
    }
    free += blocks == 0 ? sizes.slab_units : (sizes.slab_units / size - blocks) * size;
  }
  return free;
}

TEST_F(Slabs, NoTwoBlocksOverlapAndAllThatIsFreeIsHandedOut) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 engine(seed);
  const auto random = [&engine] { return static_cast<std::uint32_t>(engine()); };
  for (int run = 0; run < 50; ++run) {
    used.clear();
    const std::uint32_t largest = 2 + random() % 6;
    const SlotSizes sizes = sizes_of({1, largest, 1 + random() % largest, largest},
                                     largest * (1 + random() % 2) + random() % 2);
    std::uint32_t units = sizes.slab_units * (4 + random() % 12);
    SlabMap map(sizes, units);
    for (int step = 0; step < 400; ++step) {
      const auto group = static_cast<KvGroupNumber>(random() % sizes.block_units.size());
      if (random() % 50 == 0) {
        units = sizes.slab_units * (1 + random() % 16);
        map.set_limit(units, is_in_use());
      } else if (random() % 2 == 0 && map.free_for(group) > 0) {
        const SlotNumber slot = map.take(group);
        const std::uint32_t end = slot + sizes.units_of(group);
        ASSERT_LE(end, units);
        ASSERT_EQ(slot / sizes.slab_units, (end - 1) / sizes.slab_units);
        for (const auto& [other, its_group] : used) {
          ASSERT_TRUE(end <= other || other + sizes.units_of(its_group) <= slot);
        }
        used.emplace(slot, group);
      } else if (!used.empty()) {
        const auto any = random() % static_cast<std::uint32_t>(used.size());
        give_back(map, std::next(used.begin(), any)->first);
      }
      ASSERT_EQ(map.free_units(), expected_free(used, sizes, units));
    }
    for (std::uint32_t left = map.free_for(0); left > 0; --left) {
      ASSERT_EQ(map.free_for(0), left);
      take(map, 0);
    }
    ASSERT_EQ(map.free_for(0), 0u);
  }
}

}  // namespace
}  // namespace cairn::testing
