#include "layouts/builder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "memory/host/host_runtime.hpp"
#include "tests/fakes/faulty_runtime.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Regions of 3 * 2 * 120 = 720 bytes: no multiple of any alignment.
constexpr LayoutConfig kShape{.num_blocks = 3,
                              .num_layers = 4,
                              .outer_dim = 2,
                              .page_size = 5,
                              .inner_dim = 6,
                              .dtype_width_bytes = 4};
constexpr std::uint64_t kLayerBytes = 720;

class Builder : public testing::Test {
 protected:
  PlacedLayout placed(const LayoutConfig& config = kShape) {
    return LayoutBuilder().config(config).layer_separate(BlockDim::first);
  }
  Region system(std::uint64_t size_bytes) { return Region::system(size_bytes).value(); }

  std::unique_ptr<DeviceRuntime> runtime_ =
      make_host_runtime({.devices = 2, .device_bytes = 1 << 20}).value();
  fakes::TempDir folder_;
};

std::vector<RegionView> views_of(const std::vector<Region>& regions) {
  std::vector<RegionView> views;
  for (const Region& region : regions) views.push_back(region.view());
  return views;
}

std::uint64_t address_of(const RegionView& region) {
  return reinterpret_cast<std::uintptr_t>(region.data());
}

void expect_cut(const BlockLayout& layout, StorageKind kind, int device_id) {
  ASSERT_EQ(layout.regions().size(), 4u);
  EXPECT_EQ(layout.storage_kind(), kind);
  EXPECT_EQ(layout.device_id(), device_id);
  std::uint64_t end = 0;
  for (const RegionView& region : layout.regions()) {
    EXPECT_EQ(region.kind(), kind);
    EXPECT_EQ(region.size_bytes(), kLayerBytes);
    EXPECT_EQ(address_of(region) % 512, 0u);
    EXPECT_GE(address_of(region), end);
    end = address_of(region) + region.size_bytes();
  }
}

TEST_F(Builder, CutsSystemMemory) {
  expect_cut(placed().allocate_system().build().value(), StorageKind::system, -1);
}

TEST_F(Builder, CutsPinnedMemory) {
  expect_cut(
      placed().allocate_pinned(*runtime_, {.numa_aware = true, .device_id = 1}).build().value(),
      StorageKind::pinned, -1);
}

TEST_F(Builder, CutsDeviceMemory) {
  expect_cut(placed().allocate_device(*runtime_, {.device_id = 1}).build().value(),
             StorageKind::device, 1);
}

TEST_F(Builder, CutsUnifiedMemory) {
  expect_cut(placed().allocate_unified(*runtime_, 1).build().value(), StorageKind::unified, 1);
}

TEST_F(Builder, TakesDeviceMemoryFromTheAllocatorItIsGiven) {
  fakes::FaultyRuntime runtime(make_host_runtime({}).value());
  std::uint64_t wanted_bytes = 0;
  bool by_descriptor = false;
  const BlockLayout layout =
      placed()
          .allocate_device(runtime, {.device_id = 1, .by_descriptor = true},
                           [&](std::uint64_t size_bytes, DeviceRuntime::DeviceOptions options) {
                             wanted_bytes = size_bytes;
                             by_descriptor = options.by_descriptor;
                             return runtime_->allocate_device(size_bytes, options);
                           })
          .build()
          .value();
  expect_cut(layout, StorageKind::device, 1);
  EXPECT_GE(wanted_bytes, 4 * kLayerBytes);
  EXPECT_TRUE(by_descriptor);
  EXPECT_EQ(runtime.count(fakes::Fault::allocate), 0u);
}

TEST_F(Builder, HasAFileForEachRegion) {
  std::vector<std::filesystem::path> paths;
  for (const char* name : {"a", "b", "c", "d"}) paths.push_back(folder_.path() / name);
  const BlockLayout layout = placed().allocate_disk(paths).build().value();
  ASSERT_EQ(layout.regions().size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(layout.regions()[i].kind(), StorageKind::disk);
    EXPECT_EQ(layout.regions()[i].file_offset_bytes(), 0u);
    EXPECT_EQ(std::filesystem::file_size(paths[i]), kLayerBytes);
  }
  EXPECT_EQ(placed().allocate_disk({folder_.path() / "e"}).build().error().code,
            ErrorCode::impossible);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "e"));
}

TEST_F(Builder, HoldsTheFilesOfItsRegions) {
  const std::filesystem::path path = folder_.path() / "blocks";
  {
    const BlockLayout layout =
        LayoutBuilder().config(kShape).fully_contiguous().allocate_disk({path}).build().value();
    EXPECT_EQ(Region::disk_file(path, 1).error().code, ErrorCode::state_conflict);
  }
  EXPECT_TRUE(Region::disk_file(path, 1).has_value());
}

TEST_F(Builder, PutsBlocksOfAnotherShapeIntoSlots) {
  LayoutConfig large = kShape;
  large.inner_dim *= 2;
  const BlockLayout slots =
      LayoutBuilder().config(kShape).fully_contiguous().allocate_system().build().value();
  const BlockLayout blocks = LayoutBuilder().config(large).in_slots_of(slots).build().value();
  EXPECT_EQ(blocks.geometry().block_bytes(), 2 * slots.geometry().block_bytes());
  EXPECT_EQ(blocks.geometry().block_stride_bytes(), slots.geometry().block_stride_bytes());
  EXPECT_EQ(blocks.address(blocks.geometry().locate({.block = 1})),
            slots.address(slots.geometry().locate({.block = 1})));
  EXPECT_TRUE(blocks.owned().empty());
  const BlockLayout separate = placed().allocate_system().build().value();
  EXPECT_EQ(LayoutBuilder().config(large).in_slots_of(separate).build().error().code,
            ErrorCode::impossible);
}

TEST_F(Builder, AlignsEveryBlock) {
  LayoutConfig config = kShape;
  config.alignment = 2 << 20;
  const BlockLayout layout = placed(config).allocate_system().build().value();
  for (std::uint64_t layer = 0; layer < config.num_layers; ++layer) {
    for (std::uint64_t block = 0; block < config.num_blocks; ++block) {
      const std::byte* const start = layout.address(layout.geometry().locate({block, layer, 0}));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(start) % config.alignment, 0u);
    }
  }
}

TEST_F(Builder, AlignsWhereverMemoryStarts) {
  LayoutConfig config = kShape;
  config.alignment = 64 << 10;
  // Regions with an odd number of pages, side by side, start at any page.
  std::vector<BlockLayout> layouts;
  std::vector<Region> between;
  for (int i = 0; i < 16; ++i) {
    layouts.push_back(placed(config).allocate_pinned(*runtime_, {}).build().value());
    between.push_back(runtime_->allocate_pinned(4096, {}).value());
    EXPECT_EQ(address_of(layouts.back().regions()[0]) % config.alignment, 0u);
  }
}

TEST_F(Builder, HoldsAFullyContiguousLayoutInOneRegion) {
  const BlockLayout layout =
      LayoutBuilder().config(kShape).fully_contiguous().allocate_system().build().value();
  ASSERT_EQ(layout.regions().size(), 1u);
  EXPECT_EQ(layout.regions()[0].size_bytes(), 3u * 4 * 2 * 120);
}

TEST_F(Builder, ReportsAWrongShape) {
  LayoutConfig config = kShape;
  config.outer_dim = 1025;
  const auto built = placed(config).allocate_system().build();
  ASSERT_TRUE(built.has_error());
  EXPECT_EQ(built.error().code, ErrorCode::impossible_shape);
  EXPECT_THAT(built.error().detail, HasSubstr("outer_dim"));
}

TEST_F(Builder, AllocatesNothingForAWrongShape) {
  fakes::FaultyRuntime runtime(make_host_runtime({}).value());
  const auto built = placed({}).allocate_device(runtime, {}).build();
  EXPECT_TRUE(built.has_error());
  EXPECT_EQ(runtime.count(fakes::Fault::allocate), 0u);
}

TEST_F(Builder, AllocatesOnceForAllRegions) {
  fakes::FaultyRuntime runtime(make_host_runtime({}).value());
  const auto built = placed().allocate_device(runtime, {}).build();
  EXPECT_TRUE(built.has_value());
  EXPECT_EQ(runtime.count(fakes::Fault::allocate), 1u);
}

TEST_F(Builder, ReportsAFailedAllocation) {
  fakes::FaultyRuntime runtime(make_host_runtime({}).value());
  runtime.fail_nth(fakes::Fault::allocate, 1);
  EXPECT_EQ(placed().allocate_pinned(runtime, {}).build().error().code, ErrorCode::device_error);
}

TEST_F(Builder, ReportsMemoryTooSmallForTheShape) {
  LayoutConfig config = kShape;
  config.num_blocks = 1 << 20;
  const auto built = placed(config).allocate_device(*runtime_, {}).build();
  ASSERT_TRUE(built.has_error());
  EXPECT_EQ(built.error().code, ErrorCode::no_capacity);
}

TEST_F(Builder, FreesMemoryWithTheLayout) {
  LayoutConfig config = kShape;
  config.num_blocks = 1000;  // 960,000 of the device's 1,048,576 bytes
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(placed(config).allocate_device(*runtime_, {}).build().has_value());
  }
}

TEST_F(Builder, KeepsItsMemoryWhenMoved) {
  BlockLayout first = placed().allocate_system().build().value();
  std::byte* const start = first.address({3, 0});
  const BlockLayout second = std::move(first);
  std::memset(start, 1, kLayerBytes);
  EXPECT_EQ(second.address({3, 0}), start);
}

TEST_F(Builder, UsesBorrowedRegionsInTheirOrder) {
  const Region memory = system(4 * 1024);
  std::vector<RegionView> views;
  for (const std::uint64_t offset : {3072u, 0u, 2048u, 1024u}) {
    views.push_back(memory.view({.offset_bytes = offset, .size_bytes = 1024}).value());
  }
  const BlockLayout layout = placed().with_memory_regions(views).build().value();
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(layout.address({i, 0}), views[i].data());
    EXPECT_EQ(layout.regions()[i].size_bytes(), kLayerBytes);
  }
}

TEST_F(Builder, UsesRegisteredRegions) {
  const Region memory = system(4 * 1024);
  RegionRegistry registry;
  std::vector<RegionId> ids;
  for (std::uint64_t i = 0; i < 4; ++i) {
    ids.push_back(RegionId{10 + i});
    registry.insert(ids.back(), memory.view({1024 * i, 1024}).value()).value();
  }
  const BlockLayout layout = placed().with_registered_regions(registry, ids).build().value();
  EXPECT_EQ(layout.address({2, 0}), memory.data() + 2048);
}

TEST_F(Builder, NamesAnUnregisteredRegion) {
  const RegionRegistry registry;
  const auto built = placed().with_registered_regions(registry, {RegionId{77}}).build();
  ASSERT_TRUE(built.has_error());
  EXPECT_EQ(built.error().code, ErrorCode::not_found);
  EXPECT_THAT(built.error().detail, HasSubstr("77"));
}

// The error of a layout in these parts of 16 KiB of system memory.
Error error_of(std::vector<RegionView::Part> parts) {
  const Region memory = Region::system(16384).value();
  std::vector<RegionView> views;
  for (const RegionView::Part& part : parts) views.push_back(memory.view(part).value());
  auto built = LayoutBuilder()
                   .config(kShape)
                   .layer_separate(BlockDim::first)
                   .with_memory_regions(std::move(views))
                   .build();
  if (built) return {ErrorCode::internal, "it was built"};
  return std::move(built).error();
}

TEST_F(Builder, AcceptsRegionsOfExactlyTheSizesItNeeds) {
  EXPECT_EQ(error_of({{0, 720}, {1024, 720}, {2048, 720}, {3072, 720}}).detail, "it was built");
}

TEST_F(Builder, ReportsTheNumberAndSizeOfItsRegions) {
  for (const auto& parts : {std::vector<RegionView::Part>{},
                            {{0, 720}, {1024, 720}, {2048, 720}},
                            {{0, 720}, {1024, 720}, {2048, 720}, {3072, 720}, {4096, 720}}}) {
    const Error error = error_of(parts);
    EXPECT_EQ(error.code, ErrorCode::impossible);
    EXPECT_THAT(error.detail, AllOf(HasSubstr(std::to_string(parts.size()) + " regions"),
                                    HasSubstr("needs 4 of 720 bytes")));
  }
}

TEST_F(Builder, NamesTheRegionThatIsTooSmall) {
  const Error error = error_of({{0, 720}, {1024, 720}, {2048, 719}, {3072, 720}});
  EXPECT_EQ(error.code, ErrorCode::impossible);
  EXPECT_THAT(error.detail, AllOf(HasSubstr("region 2"), HasSubstr("719"), HasSubstr("needs 720")));
}

TEST_F(Builder, NamesTheMisalignedRegion) {
  const Error error = error_of({{0, 720}, {1024, 720}, {2048, 720}, {3076, 720}});
  EXPECT_EQ(error.code, ErrorCode::impossible);
  EXPECT_THAT(error.detail, AllOf(HasSubstr("region 3"), HasSubstr("4 bytes"), HasSubstr("512")));
}

TEST_F(Builder, RefusesOverlappingRegions) {
  const Error error = error_of({{0, 1024}, {4096, 1024}, {512, 1024}, {2048, 1024}});
  EXPECT_EQ(error.code, ErrorCode::impossible);
  EXPECT_THAT(error.detail, HasSubstr("regions 0 and 2 start 512 bytes apart"));
}

TEST_F(Builder, RefusesRegionsThatOverlapByOneByte) {
  const LayoutConfig config{.num_blocks = 1,
                            .num_layers = 2,
                            .outer_dim = 1,
                            .page_size = 27,
                            .inner_dim = 19,
                            .dtype_width_bytes = 1};  // regions of 513 bytes
  const Region memory = system(4096);
  const std::vector<RegionView> views{memory.view({0, 513}).value(),
                                      memory.view({512, 513}).value()};
  EXPECT_EQ(placed(config).with_memory_regions(views).build().error().code, ErrorCode::impossible);
}

TEST_F(Builder, AcceptsRegionsThatOverlapOnlyInUnusedBytes) {
  EXPECT_EQ(error_of({{0, 4096}, {1024, 4096}, {2048, 4096}, {3072, 4096}}).detail, "it was built");
}

TEST_F(Builder, RefusesRegionsOfTwoKinds) {
  std::vector<Region> regions;
  for (int i = 0; i < 3; ++i) regions.push_back(system(1024));
  regions.push_back(runtime_->allocate_pinned(1024, {}).value());
  const auto built = placed().with_memory_regions(views_of(regions)).build();
  ASSERT_TRUE(built.has_error());
  EXPECT_EQ(built.error().code, ErrorCode::impossible);
  EXPECT_THAT(built.error().detail, AllOf(HasSubstr("region 3"), HasSubstr("pinned")));
}

TEST_F(Builder, RefusesRegionsOfTwoDevices) {
  std::vector<Region> regions;
  for (const int device : {0, 0, 1, 0}) {
    regions.push_back(runtime_->allocate_device(1024, {.device_id = device}).value());
  }
  const auto built = placed().with_memory_regions(views_of(regions)).build();
  ASSERT_TRUE(built.has_error());
  EXPECT_THAT(built.error().detail, AllOf(HasSubstr("region 2"), HasSubstr("device 1")));
}

TEST_F(Builder, RefusesFileRegionsThatAreNotPageAligned) {
  const Region file = Region::disk_file(folder_.path() / "f", 65536).value();
  std::vector<RegionView> views;
  for (const std::uint64_t offset : {0u, 4096u, 8704u, 16384u}) {
    views.push_back(file.view({offset, 720}).value());
  }
  const auto built = placed().with_memory_regions(views).build();
  ASSERT_TRUE(built.has_error());
  EXPECT_THAT(built.error().detail,
              AllOf(HasSubstr("region 2"), HasSubstr("512 bytes after"), HasSubstr("4096")));
}

TEST_F(Builder, ReportsAFileThatCannotBeMade) {
  const auto built = LayoutBuilder()
                         .config(kShape)
                         .fully_contiguous()
                         .allocate_disk({folder_.path() / "none" / "blocks"})
                         .build();
  ASSERT_TRUE(built.has_error());
  EXPECT_EQ(built.error().code, ErrorCode::io_error);
}

// A run of layers has the same addresses as in the whole layout, also if the tier has grown by a
// part.
TEST(LayoutBuilder, LayersKeepTheirAddresses) {
  const LayoutConfig shape{.num_blocks = 3,
                           .num_layers = 4,
                           .outer_dim = 2,
                           .page_size = 2,
                           .inner_dim = 4,
                           .dtype_width_bytes = 2};
  for (const bool separate : {false, true}) {
    std::vector<BlockLayout> parts;
    for (int i = 0; i < 2; ++i) {
      auto shaped = LayoutBuilder().config(shape);
      auto placed = separate ? std::move(shaped).layer_separate(BlockDim::second)
                             : std::move(shaped).fully_contiguous();
      parts.push_back(std::move(placed).allocate_system().build().value());
    }
    const BlockLayout* const both[] = {&parts[0], &parts[1]};
    const BlockLayout whole = BlockLayout::joined(both);
    const BlockLayout some = whole.layers({.first = 1, .count = 2});
    EXPECT_EQ(some.config().num_layers, 2u);
    EXPECT_EQ(some.config().num_blocks, 6u);
    for (std::uint64_t block = 0; block < 6; ++block) {
      for (std::uint64_t layer = 0; layer < 2; ++layer) {
        for (std::uint64_t outer = 0; outer < 2; ++outer) {
          EXPECT_EQ(some.address(some.geometry().locate({block, layer, outer})),
                    whole.address(whole.geometry().locate({block, layer + 1, outer})));
        }
      }
    }
  }
}

}  // namespace
}  // namespace cairn
