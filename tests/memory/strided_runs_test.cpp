#include "memory/strided_runs.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "memory/cuda/copy_kernel.hpp"
#include "memory/cuda/copy_kernel_words.hpp"

namespace cairn {
namespace {

// Only addresses; their bytes are never read.
std::byte* byte_at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

using Pieces = std::vector<MemoryCopy>;

// All bytes that the runs copy, sorted by destination.
std::vector<std::pair<std::byte*, const std::byte*>> covered(const std::vector<StridedCopy>& runs) {
  std::vector<std::pair<std::byte*, const std::byte*>> bytes;
  for (const StridedCopy& run : runs) {
    for (std::uint64_t row = 0; row < run.rows; ++row) {
      const MemoryCopy piece = run.row(row);
      for (std::uint64_t i = 0; i < piece.size_bytes; ++i) {
        bytes.emplace_back(piece.destination + i, piece.source + i);
      }
    }
  }
  std::ranges::sort(bytes);
  return bytes;
}

TEST(StridedRunsTest, FindsPiecesAtEvenDistances) {
  Pieces pieces;
  for (std::uintptr_t i = 0; i < 8; ++i)
    pieces.push_back({byte_at(0x1000 + 96 * i), byte_at(0x9000 + 64 * i), 32});
  std::ranges::shuffle(pieces, std::mt19937(1));
  const auto runs = find_strided_runs(pieces);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0], (StridedCopy{byte_at(0x1000), byte_at(0x9000), 32, 96, 64, 8}));
  EXPECT_EQ(runs[0].destination_extent_bytes(), 7 * 96 + 32u);
  EXPECT_EQ(runs[0].source_extent_bytes(), 7 * 64 + 32u);
}

TEST(StridedRunsTest, FindsRunsBySourceAndByDestination) {
  // Each block is contiguous, and the layers are at uneven distances: only the pieces of one layer
  // are at even distances.
  const std::uintptr_t layers[] = {0x10'0000, 0x31'0000, 0x72'0000};
  Pieces to_layers, to_blocks;
  for (std::uintptr_t block = 0; block < 16; ++block) {
    for (std::uintptr_t layer = 0; layer < 3; ++layer) {
      std::byte* const whole = byte_at(0x1000 + (block * 3 + layer) * 64);
      std::byte* const apart = byte_at(layers[layer] + block * 64);
      to_layers.push_back({apart, whole, 64});
      to_blocks.push_back({whole, apart, 64});
    }
  }
  EXPECT_EQ(find_strided_runs(to_layers).size(), 3u);
  EXPECT_EQ(find_strided_runs(to_blocks).size(), 3u);
}

TEST(StridedRunsTest, DoesNotJoinUnevenPieces) {
  Pieces pieces = {{byte_at(0x1000), byte_at(0x9000), 32},
                   {byte_at(0x1100), byte_at(0x9100), 32},
                   {byte_at(0x1200), byte_at(0x9210), 32},   // another distance
                   {byte_at(0x1300), byte_at(0x9400), 48}};  // another size
  EXPECT_EQ(find_strided_runs(pieces).size(), 3u);
}

TEST(StridedRunsTest, UsesNoPitchThatCudaRefuses) {
  Pieces wide = {{byte_at(0x1000), byte_at(0x9000), 32},
                 {byte_at(0x1000 + kMaxPitchBytes + 1), byte_at(0xA000), 32}};
  EXPECT_EQ(find_strided_runs(wide).size(), 2u);
  Pieces narrow = {{byte_at(0x1000), byte_at(0x9000), 32},
                   {byte_at(0x1020), byte_at(0x9010), 32}};  // sources overlap
  EXPECT_EQ(find_strided_runs(narrow).size(), 2u);
}

TEST(StridedRunsTest, CoversEveryPieceOnce) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    Pieces pieces;
    std::uintptr_t destination = 0x1000;
    for (int i = 0; i < 60; ++i) {
      const std::uint64_t size_bytes = 8u << (random() % 2);
      destination += 8 * (random() % 3);
      pieces.push_back({byte_at(destination), byte_at(0x9000 + 8 * (random() % 64)), size_bytes});
      destination += size_bytes;
    }
    std::vector<StridedCopy> alone;
    for (const MemoryCopy& piece : pieces) {
      alone.push_back({.destination = piece.destination,
                       .source = piece.source,
                       .row_bytes = piece.size_bytes});
    }
    std::ranges::shuffle(pieces, random);
    EXPECT_EQ(covered(find_strided_runs(pieces)), covered(alone)) << "round " << round;
  }
}

TEST(CopyKernelTest, PartsCoverTheWholePiece) {
  for (std::uint64_t size_bytes : {1u, 511u, 512u, 513u, 8191u, 100'000u}) {
    for (std::uint64_t parts : {1u, 2u, 7u, 64u}) {
      std::uint64_t expected = 0;
      for (std::uint64_t part = 0; part < parts; ++part) {
        const CopyPart range = copy_part(size_bytes, part, parts);
        EXPECT_EQ(range.begin, expected);
        EXPECT_EQ(range.begin == range.end || range.begin % kPartGranularityBytes == 0, true);
        expected = range.end;
      }
      EXPECT_EQ(expected, size_bytes) << parts << " parts";
    }
  }
}

TEST(CopyKernelTest, WordsAreAlignedOnBothSides) {
  for (std::uint64_t destination = 64; destination < 96; ++destination) {
    for (std::uint64_t source = 1024; source < 1056; ++source) {
      for (std::uint64_t size_bytes = 0; size_bytes < 70; ++size_bytes) {
        const CopyWords words = copy_words(destination, source, size_bytes);
        EXPECT_EQ(words.head_bytes + words.words * words.word_bytes + words.tail_bytes, size_bytes);
        if (words.words == 0) continue;
        EXPECT_EQ((destination + words.head_bytes) % words.word_bytes, 0u);
        EXPECT_EQ((source + words.head_bytes) % words.word_bytes, 0u);
        EXPECT_LT(words.tail_bytes, words.word_bytes);
      }
    }
  }
  EXPECT_EQ(copy_words(48, 160, 64).word_bytes, 16u);
  EXPECT_EQ(copy_words(48, 164, 64).word_bytes, 4u);
  EXPECT_EQ(copy_words(48, 161, 64).word_bytes, 1u);
}

TEST(CopyKernelTest, UsesFewThreadBlocksAcrossTheBusAndAllWithinADevice) {
  const Pieces many(1000, MemoryCopy{byte_at(0), byte_at(0), 32 << 10});
  const CopyLaunch bus = plan_copy_launch(many, {.crosses_bus = true, .multiprocessors = 132});
  EXPECT_EQ(bus.thread_blocks, 8u);
  EXPECT_EQ(bus.parts, 1u);
  const CopyLaunch within = plan_copy_launch(many, {.multiprocessors = 132});
  EXPECT_EQ(within.thread_blocks, 528u);
  const Pieces one(1, MemoryCopy{byte_at(0), byte_at(0), 64 << 20});
  EXPECT_EQ(plan_copy_launch(one, {.multiprocessors = 132}).thread_blocks, 528u);
  const Pieces tiny(1, MemoryCopy{byte_at(0), byte_at(0), 100});
  EXPECT_EQ(plan_copy_launch(tiny, {.multiprocessors = 132}).thread_blocks, 1u);
}

}  // namespace
}  // namespace cairn
