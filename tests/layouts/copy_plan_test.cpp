#include "layouts/copy_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/layouts/byte_map.hpp"

namespace cairn {
namespace {

using testing_layouts::ByteMap;
using testing_layouts::describe;
using testing_layouts::kLayouts;
using testing_layouts::Layout;
using testing_layouts::random_shape;

struct ByteMove {
  PieceLocation source;
  PieceLocation destination;
  friend auto operator<=>(const ByteMove&, const ByteMove&) = default;
};

std::vector<ByteMove> wanted_moves(const Geometry& source, const Geometry& destination,
                                   const std::vector<BlockPair>& pairs) {
  const ByteMap from(source);
  const ByteMap to(destination);
  std::vector<ByteMove> moves;
  for (const BlockPair& pair : pairs) {
    for (std::uint64_t n = 0; n < source.block_bytes(); ++n) {
      moves.push_back({from.at(pair.source, n), to.at(pair.destination, n)});
    }
  }
  std::ranges::sort(moves);
  return moves;
}

std::vector<ByteMove> planned_moves(const std::vector<CopySpan>& spans) {
  std::vector<ByteMove> moves;
  for (const CopySpan& span : spans) {
    ByteMove move{span.source, span.destination};
    for (std::uint64_t i = 0; i < span.size_bytes; ++i) {
      moves.push_back(move);
      ++move.source.offset_bytes;
      ++move.destination.offset_bytes;
    }
  }
  std::ranges::sort(moves);
  return moves;
}

// A run begins at each byte that does not continue another one on both sides.
std::size_t fewest_spans(const std::vector<ByteMove>& sorted) {
  return static_cast<std::size_t>(std::ranges::count_if(sorted, [&](ByteMove move) {
    if (move.source.offset_bytes == 0 || move.destination.offset_bytes == 0) return true;
    --move.source.offset_bytes;
    --move.destination.offset_bytes;
    return !std::ranges::binary_search(sorted, move);
  }));
}

// Random pairs: each chosen source block goes to one or more destination blocks.
std::vector<BlockPair> random_pairs(const Geometry& source, const Geometry& destination,
                                    std::mt19937& random) {
  const auto blocks_of = [](const Geometry& g) {
    std::vector<std::uint32_t> blocks(g.config().num_blocks);
    std::iota(blocks.begin(), blocks.end(), 0u);
    return blocks;
  };
  std::vector<std::uint32_t> from = blocks_of(source);
  std::vector<std::uint32_t> to = blocks_of(destination);
  const auto chance = [&random] { return std::uniform_int_distribution(0, 2)(random) == 0; };
  if (chance()) std::ranges::shuffle(from, random);
  if (chance()) std::ranges::shuffle(to, random);
  const bool fan_out = chance();
  const bool all = chance();
  std::vector<BlockPair> pairs;
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (i >= from.size() && !fan_out) break;
    if (!all && chance()) continue;
    pairs.push_back({from[i % from.size()], to[i]});
  }
  if (chance()) std::ranges::shuffle(pairs, random);
  return pairs;
}

TEST(CopyPlan, MovesEveryByteOnceInTheFewestSpans) {
  const std::uint32_t seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    LayoutConfig from = random_shape(random);
    const LayoutConfig other = random_shape(random);
    LayoutConfig to = from;
    to.num_blocks = other.num_blocks;
    if (round % 3 == 0) to.num_blocks = from.num_blocks;
    if (round % 2 == 0) to.alignment = other.alignment;
    if (round % 4 == 0) to.alignment = from.alignment = 1;
    for (const Layout& a : kLayouts) {
      for (const Layout& b : kLayouts) {
        const Geometry source = a.of(from);
        const Geometry destination = b.of(to);
        SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(source) + " to " +
                     describe(destination));
        const std::vector<BlockPair> pairs = random_pairs(source, destination, random);
        std::vector<CopySpan> spans;
        plan_copy(source, destination, pairs, spans);
        const std::vector<ByteMove> wanted = wanted_moves(source, destination, pairs);
        ASSERT_EQ(planned_moves(spans), wanted);
        ASSERT_EQ(spans.size(), fewest_spans(wanted));
        ASSERT_TRUE(std::ranges::is_sorted(spans, {}, &CopySpan::source));
      }
    }
  }
}

TEST(CopyPlan, CopiesRealMemoryBetweenAnyTwoLayouts) {
  const std::uint32_t seed = std::random_device{}();
  std::mt19937 random(seed);
  using Memory = std::vector<std::vector<std::uint8_t>>;
  const auto memory_of = [](const Geometry& g) {
    return Memory(g.num_regions(), std::vector<std::uint8_t>(g.region_bytes(), 0xEE));
  };
  for (int round = 0; round < 60; ++round) {
    const LayoutConfig config = random_shape(random);
    for (const Layout& a : kLayouts) {
      for (const Layout& b : kLayouts) {
        const Geometry source = a.of(config);
        const Geometry destination = b.of(config);
        SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(source) + " to " +
                     describe(destination));
        const ByteMap from_map(source);
        const ByteMap to_map(destination);
        Memory from = memory_of(source);
        Memory to = memory_of(destination);
        Memory expected = memory_of(destination);
        const std::vector<BlockPair> pairs = random_pairs(source, destination, random);
        for (const BlockPair& pair : pairs) {
          for (std::uint64_t n = 0; n < source.block_bytes(); ++n) {
            const auto value = static_cast<std::uint8_t>(pair.source * 37 + n);
            const PieceLocation here = from_map.at(pair.source, n);
            const PieceLocation there = to_map.at(pair.destination, n);
            from[here.region][here.offset_bytes] = value;
            expected[there.region][there.offset_bytes] = value;
          }
        }
        std::vector<CopySpan> spans;
        plan_copy(source, destination, pairs, spans);
        for (const CopySpan& span : spans) {
          std::copy_n(from.at(span.source.region).data() + span.source.offset_bytes,
                      span.size_bytes,
                      to.at(span.destination.region).data() + span.destination.offset_bytes);
        }
        ASSERT_EQ(to, expected);  // padding and other blocks stay unchanged
      }
    }
  }
}

constexpr LayoutConfig kModel{.num_blocks = 100,
                              .num_layers = 32,
                              .outer_dim = 2,
                              .page_size = 16,
                              .inner_dim = 1024,
                              .dtype_width_bytes = 2,
                              .alignment = 4096};

std::vector<BlockPair> run_of(std::uint32_t source, std::uint32_t destination,
                              std::uint32_t count) {
  std::vector<BlockPair> pairs;
  for (std::uint32_t i = 0; i < count; ++i) pairs.push_back({source + i, destination + i});
  return pairs;
}

TEST(CopyPlan, CopiesNeighbouringContiguousBlocksInOneSpan) {
  const Geometry geometry = Geometry::fully_contiguous(kModel);
  std::vector<CopySpan> spans;
  plan_copy(geometry, geometry, run_of(10, 50, 40), spans);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].size_bytes, 40 * geometry.block_bytes());
}

TEST(CopyPlan, CopiesPaddedContiguousBlocksInASpanEach) {
  LayoutConfig padded = kModel;
  padded.inner_dim = 1001;
  const Geometry geometry = Geometry::fully_contiguous(padded);
  ASSERT_NE(geometry.block_stride_bytes(), geometry.block_bytes());
  std::vector<CopySpan> spans;
  plan_copy(geometry, geometry, run_of(10, 50, 40), spans);
  EXPECT_EQ(spans.size(), 40u);
}

TEST(CopyPlan, CopiesNeighbouringBlocksInOneSpanPerLayer) {
  const Geometry geometry = Geometry::layer_separate(kModel, BlockDim::first);
  std::vector<CopySpan> spans;
  plan_copy(geometry, geometry, run_of(0, 60, 40), spans);
  EXPECT_EQ(spans.size(), 32u);
}

TEST(CopyPlan, JoinsAWholeLayerAcrossItsOuterIndex) {
  const Geometry geometry = Geometry::layer_separate(kModel, BlockDim::second);
  std::vector<CopySpan> spans;
  plan_copy(geometry, geometry, run_of(0, 0, 100), spans);
  ASSERT_EQ(spans.size(), 32u);
  EXPECT_EQ(spans[0].size_bytes, geometry.region_bytes());
}

TEST(CopyPlan, AppendsToThePlan) {
  const Geometry geometry = Geometry::fully_contiguous(kModel);
  std::vector<CopySpan> spans;
  plan_copy(geometry, geometry, run_of(0, 0, 1), spans);
  const CopySpan first = spans[0];
  plan_copy(geometry, geometry, run_of(1, 1, 1), spans);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0], first);
}

TEST(CopyPlan, IsEmptyForNoBlocks) {
  const Geometry geometry = Geometry::fully_contiguous(kModel);
  std::vector<CopySpan> spans;
  plan_copy(geometry, geometry, {}, spans);
  EXPECT_TRUE(spans.empty());
}

TEST(CopyPlanDeathTest, DifferentShapesAbort) {
  LayoutConfig other = kModel;
  other.page_size = 8;
  std::vector<CopySpan> spans;
  EXPECT_DEATH(plan_copy(Geometry::fully_contiguous(kModel), Geometry::fully_contiguous(other),
                         run_of(0, 0, 1), spans),
               "invariant broken");
}

TEST(CanonicalPlan, ListsABlocksBytesInOrderInTheFewestSpans) {
  const std::uint32_t seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int round = 0; round < 100; ++round) {
    const LayoutConfig config = random_shape(random);
    for (const Layout& layout : kLayouts) {
      const Geometry geometry = layout.of(config);
      SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(geometry));
      const ByteMap map(geometry);
      for (std::uint32_t block = 0; block < config.num_blocks; ++block) {
        std::vector<BlockSpan> spans;
        plan_canonical(geometry, block, spans);
        std::uint64_t n = 0;
        std::size_t fewest = 1;
        for (const BlockSpan& span : spans) {
          PieceLocation place = span.location;
          for (std::uint64_t i = 0; i < span.size_bytes; ++i, ++n, ++place.offset_bytes) {
            ASSERT_EQ(place, map.at(block, n));
          }
        }
        ASSERT_EQ(n, geometry.block_bytes());
        for (std::uint64_t i = 1; i < n; ++i) {
          PieceLocation next = map.at(block, i - 1);
          ++next.offset_bytes;
          if (map.at(block, i) != next) ++fewest;
        }
        ASSERT_EQ(spans.size(), fewest);
      }
    }
  }
}

// Copying all layers in runs equals copying whole blocks.
TEST(CopyPlan, CopiesOfLayersAddUpToThatOfBlocks) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const LayoutConfig shape = random_shape(random);
    const Geometry source = kLayouts[random() % 3].of(shape);
    const Geometry destination = kLayouts[random() % 3].of(shape);
    SCOPED_TRACE(describe(source) + " to " + describe(destination));
    std::vector<BlockPair> pairs;
    for (std::uint32_t i = 0; i < shape.num_blocks; ++i) {
      pairs.push_back({i, static_cast<std::uint32_t>(shape.num_blocks) - 1 - i});
    }
    std::vector<CopySpan> spans;
    for (std::uint64_t first = 0; first < shape.num_layers;) {
      const std::uint64_t count = 1 + random() % (shape.num_layers - first);
      const std::size_t before = spans.size();
      plan_copy(source.with_layers(count), destination.with_layers(count), pairs, spans);
      // Regions and offsets count from the first of the layers.
      const auto move = [first](const Geometry& geometry, PieceLocation& at) {
        if (geometry.kind() == LayoutKind::fully_contiguous) {
          at.offset_bytes += first * geometry.layer_stride_bytes();
        } else {
          at.region += static_cast<std::uint32_t>(first);
        }
      };
      for (std::size_t i = before; i < spans.size(); ++i) {
        move(source, spans[i].source);
        move(destination, spans[i].destination);
      }
      first += count;
    }
    EXPECT_EQ(planned_moves(spans), wanted_moves(source, destination, pairs));
  }
}

// Copying all ranges of the outer dimension equals copying whole blocks.
TEST(CopyPlan, CopiesOfOuterRangesAddUpToThatOfBlocks) {
  std::mt19937 random(8);
  for (int round = 0; round < 200; ++round) {
    LayoutConfig shape = random_shape(random);
    shape.outer_dim = 1 + random() % 6;
    const Geometry source = kLayouts[random() % 3].of(shape);
    const Geometry destination = kLayouts[random() % 3].of(shape);
    SCOPED_TRACE(describe(source) + " to " + describe(destination));
    std::vector<BlockPair> pairs;
    for (std::uint32_t i = 0; i < shape.num_blocks; ++i) {
      pairs.push_back({i, static_cast<std::uint32_t>(shape.num_blocks) - 1 - i});
    }
    std::vector<CopySpan> spans;
    for (std::uint64_t first = 0; first < shape.outer_dim;) {
      const std::uint64_t count = 1 + random() % (shape.outer_dim - first);
      const Geometry::Outers which{.first = first, .count = count};
      const Geometry part = source.with_outers(which);
      EXPECT_EQ(part.block_bytes(), source.block_bytes() / shape.outer_dim * count);
      plan_copy(part, destination.with_outers(which), pairs, spans);
      first += count;
    }
    EXPECT_EQ(planned_moves(spans), wanted_moves(source, destination, pairs));
  }
}

// A range of a block is a block of its own in memory of the range's shape.
TEST(CopyPlan, TakesAnOuterRangeToWholeBlocksInTheFewestSpans) {
  std::mt19937 random(9);
  for (int round = 0; round < 200; ++round) {
    LayoutConfig shape = random_shape(random);
    shape.outer_dim = 2 + random() % 5;
    const Geometry whole = kLayouts[random() % 3].of(shape);
    const Geometry::Outers which{.first = 1, .count = 1 + random() % (shape.outer_dim - 1)};
    LayoutConfig narrow = shape;
    narrow.outer_dim = which.count;
    const Geometry destination = kLayouts[random() % 3].of(narrow);
    SCOPED_TRACE(describe(whole) + " to " + describe(destination));
    const std::vector<BlockPair> pairs{{0, 0}};
    const ByteMap from(whole);
    const ByteMap to(destination);
    std::vector<ByteMove> wanted;
    const std::uint64_t piece = whole.piece_bytes();
    for (std::uint64_t layer = 0; layer < shape.num_layers; ++layer) {
      for (std::uint64_t i = 0; i < which.count * piece; ++i) {
        wanted.push_back({from.at(0, (layer * shape.outer_dim + which.first) * piece + i),
                          to.at(0, layer * which.count * piece + i)});
      }
    }
    std::ranges::sort(wanted);
    std::vector<CopySpan> spans;
    plan_copy(whole.with_outers(which), destination, pairs, spans);
    EXPECT_EQ(planned_moves(spans), wanted);
    EXPECT_EQ(spans.size(), fewest_spans(wanted));
  }
}

}  // namespace
}  // namespace cairn
