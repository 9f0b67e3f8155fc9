#include "layouts/geometry.hpp"

#include <gtest/gtest.h>

#include <set>

#include "tests/layouts/byte_map.hpp"

namespace cairn {
namespace {

using testing_layouts::ByteMap;
using testing_layouts::describe;
using testing_layouts::kLayouts;
using testing_layouts::Layout;

void expect_as_laid_down(const Geometry& geometry) {
  const ByteMap map(geometry);
  const LayoutConfig& config = geometry.config();
  EXPECT_EQ(geometry.num_regions(), map.num_regions());
  EXPECT_EQ(geometry.region_bytes(), map.region_bytes());
  std::set<PieceLocation> taken;
  for (std::uint64_t block = 0; block < config.num_blocks; ++block) {
    std::uint64_t n = 0;
    for (std::uint64_t layer = 0; layer < config.num_layers; ++layer) {
      for (std::uint64_t outer = 0; outer < config.outer_dim; ++outer) {
        PieceLocation place = geometry.locate({block, layer, outer});
        for (std::uint64_t i = 0; i < geometry.piece_bytes(); ++i, ++n, ++place.offset_bytes) {
          ASSERT_EQ(place, map.at(block, n)) << "byte " << n << " of block " << block;
          ASSERT_TRUE(taken.insert(place).second) << "two bytes in one place";
          ASSERT_LT(place.region, geometry.num_regions());
          ASSERT_LT(place.offset_bytes, geometry.region_bytes());
        }
      }
    }
    ASSERT_EQ(n, geometry.block_bytes());
  }
}

TEST(Geometry, GivesEveryByteItsOwnPlace) {
  const std::uint32_t seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int round = 0; round < 100; ++round) {
    const LayoutConfig config = testing_layouts::random_shape(random);
    for (const Layout& layout : kLayouts) {
      const Geometry geometry = layout.of(config);
      SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(geometry));
      expect_as_laid_down(geometry);
    }
  }
}

TEST(Geometry, PadsBlocksOfAContiguousLayout) {
  const Geometry geometry = Geometry::fully_contiguous({.num_blocks = 3,
                                                        .num_layers = 3,
                                                        .outer_dim = 2,
                                                        .page_size = 5,
                                                        .inner_dim = 7,
                                                        .dtype_width_bytes = 4,
                                                        .alignment = 512});
  EXPECT_EQ(geometry.block_bytes(), 840u);
  EXPECT_EQ(geometry.block_stride_bytes(), 1024u);
  EXPECT_EQ(geometry.layer_stride_bytes(), 280u);
  EXPECT_EQ(geometry.outer_stride_bytes(), 140u);
  EXPECT_EQ(geometry.region_bytes(), 3072u);
}

TEST(Geometry, PadsBlocksOfALayerWithTheBlockFirst) {
  const Geometry geometry = Geometry::layer_separate({.num_blocks = 3,
                                                      .num_layers = 3,
                                                      .outer_dim = 2,
                                                      .page_size = 5,
                                                      .inner_dim = 7,
                                                      .dtype_width_bytes = 4,
                                                      .alignment = 512},
                                                     BlockDim::first);
  EXPECT_EQ(geometry.num_regions(), 3u);
  EXPECT_EQ(geometry.block_stride_bytes(), 512u);
  EXPECT_EQ(geometry.outer_stride_bytes(), 140u);
  EXPECT_EQ(geometry.region_bytes(), 1536u);
}

TEST(Geometry, PadsPiecesOfALayerWithTheBlockSecond) {
  const Geometry geometry = Geometry::layer_separate({.num_blocks = 3,
                                                      .num_layers = 3,
                                                      .outer_dim = 2,
                                                      .page_size = 5,
                                                      .inner_dim = 7,
                                                      .dtype_width_bytes = 4,
                                                      .alignment = 512},
                                                     BlockDim::second);
  EXPECT_EQ(geometry.block_stride_bytes(), 512u);
  EXPECT_EQ(geometry.outer_stride_bytes(), 1536u);
  EXPECT_EQ(geometry.region_bytes(), 3072u);
}

TEST(Geometry, ReachesTheLastPieceOfTheLargestShape) {
  const LayoutConfig config{.num_blocks = (std::uint64_t{1} << 31) - 1,
                            .num_layers = 1024,
                            .outer_dim = 2,
                            .page_size = 65536,
                            .inner_dim = 32,
                            .dtype_width_bytes = 1};
  for (const Layout& layout : kLayouts) {
    const Geometry geometry = layout.of(config);
    const PieceLocation last = geometry.locate({config.num_blocks - 1, 1023, 1});
    EXPECT_EQ(last.offset_bytes + geometry.piece_bytes(), geometry.region_bytes())
        << describe(geometry);
  }
}

TEST(GeometryDeathTest, MissingPieceAborts) {
  const Geometry geometry = Geometry::fully_contiguous({.num_blocks = 2,
                                                        .num_layers = 2,
                                                        .outer_dim = 1,
                                                        .page_size = 1,
                                                        .inner_dim = 1,
                                                        .dtype_width_bytes = 1});
  EXPECT_DEATH(geometry.locate({2, 0, 0}), "invariant broken");
  EXPECT_DEATH(geometry.locate({0, 2, 0}), "invariant broken");
  EXPECT_DEATH(geometry.locate({0, 0, 1}), "invariant broken");
}

TEST(GeometryDeathTest, UncheckedShapeAborts) {
  EXPECT_DEATH(Geometry::fully_contiguous({}), "invariant broken");
}

}  // namespace
}  // namespace cairn
