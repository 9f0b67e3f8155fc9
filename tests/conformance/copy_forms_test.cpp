// Every form of a copy moves the same bytes, for all sizes, addresses and kinds of memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "tests/conformance/runtime_case.hpp"

namespace cairn::conformance {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::byte kUntouched{0xEE};

Bytes varied_bytes(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(count);
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

// One copy of a call, by offsets into both sides.
struct Piece {
  std::uint64_t destination = 0;
  std::uint64_t source = 0;
  std::uint64_t size_bytes = 0;
};

struct Route {
  StorageKind from;
  StorageKind to;
};
constexpr Route kRoutes[] = {
    {StorageKind::pinned, StorageKind::device}, {StorageKind::device, StorageKind::pinned},
    {StorageKind::device, StorageKind::device}, {StorageKind::pinned, StorageKind::pinned},
    {StorageKind::system, StorageKind::device}, {StorageKind::unified, StorageKind::device},
    {StorageKind::device, StorageKind::unified}};
// The routes on which every form differs.
constexpr std::span kDirectRoutes = std::span(kRoutes).first(3);

class CopyFormTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    if (runtime_) stream_ = runtime_->create_stream(0).value();
  }
  void TearDown() override {
    stream_.reset();
    RuntimeTest::TearDown();
  }
  Region of(StorageKind kind, std::uint64_t size_bytes) {
    if (kind == StorageKind::device) return runtime_->allocate_device(size_bytes, {}).value();
    if (kind == StorageKind::pinned) return runtime_->allocate_pinned(size_bytes, {}).value();
    if (kind == StorageKind::unified) return runtime_->allocate_unified(0, size_bytes).value();
    return Region::system(size_bytes).value();
  }
  void move(std::byte* destination, const std::byte* source, std::uint64_t size_bytes) {
    const MemoryCopy copy{destination, source, size_bytes};
    stream_->copy({&copy, 1}).value();
    stream_->record().value()->wait().value();
  }

  // Moves the pieces in each form on each route. Then the destination holds the pieces and is
  // otherwise untouched.
  void expect_moved(const std::vector<Piece>& pieces, std::uint64_t size_bytes,
                    std::span<const Route> routes = kRoutes) {
    const Bytes bytes = varied_bytes(size_bytes, 1);
    Bytes expected(size_bytes, kUntouched);
    for (const Piece& piece : pieces) {
      std::memcpy(expected.data() + piece.destination, bytes.data() + piece.source,
                  piece.size_bytes);
    }
    for (const auto& [from, to] : routes) {
      const Region source = of(from, size_bytes);
      const Region destination = of(to, size_bytes);
      move(source.data(), bytes.data(), size_bytes);
      std::vector<MemoryCopy> copies;
      for (const Piece& piece : pieces) {
        copies.push_back({destination.data() + piece.destination, source.data() + piece.source,
                          piece.size_bytes});
      }
      for (const CopyForm form : kCopyForms) {
        SCOPED_TRACE(std::string(to_string(from)) + " to " + std::string(to_string(to)) + " by " +
                     std::string(to_string(form)));
        const Bytes blank(size_bytes, kUntouched);
        move(destination.data(), blank.data(), size_bytes);
        stream_->copy(copies, form).value();
        Bytes arrived(size_bytes);
        move(arrived.data(), destination.data(), size_bytes);
        ASSERT_TRUE(arrived == expected);
      }
    }
  }

  std::unique_ptr<Stream> stream_;
};

TEST_P(CopyFormTest, MovesPiecesOfAnySizeAtAnyAddress) {
  std::mt19937 random(2);
  std::vector<Piece> pieces;
  std::uint64_t destination = 0;
  std::uint64_t source = 0;
  for (int i = 0; i < 150; ++i) {
    destination += random() % 40;
    source += random() % 40;
    const std::uint64_t size_bytes = random() % (i % 10 == 0 ? 20'000 : 100);
    pieces.push_back({destination, source, size_bytes});
    destination += size_bytes;
    source += size_bytes;
  }
  std::ranges::shuffle(pieces, random);
  expect_moved(pieces, std::max(destination, source) + 1);
}

// Covers all alignments that both sides share: 16, 8, 4, 2 and 1 bytes.
TEST_P(CopyFormTest, MovesEveryDistanceBetweenAddresses) {
  std::vector<Piece> pieces;
  for (std::uint64_t distance = 0; distance < 17; ++distance) {
    for (std::uint64_t size_bytes : {std::uint64_t{1}, std::uint64_t{15}, std::uint64_t{1000}}) {
      const std::uint64_t at = 1100 * pieces.size() + 3;
      pieces.push_back({at, at + distance, size_bytes});
    }
  }
  expect_moved(pieces, 1100 * pieces.size() + 64);
}

// Blocks of 5 layers, keys and values, move between contiguous blocks and separate layers. Blocks
// lie outside or inside of keys and values, in order or shuffled.
TEST_P(CopyFormTest, MovesBetweenLayersAndBlocks) {
  constexpr std::uint64_t kLayers = 5;
  constexpr std::uint64_t kBlocks = 12;
  for (const bool in_order : {true, false}) {
    const std::uint64_t piece_bytes = in_order ? 512 : 40;
    const std::uint64_t layer_bytes = kBlocks * 2 * piece_bytes;
    for (const bool blocks_first : {true, false}) {
      for (const bool to_layers : {true, false}) {
        SCOPED_TRACE(std::string(blocks_first ? "blocks first" : "blocks second") +
                     (in_order ? ", in order" : ", shuffled") +
                     (to_layers ? ", to layers, " : ", to blocks, ") + std::to_string(piece_bytes));
        std::vector<std::uint64_t> slots(kBlocks);
        for (std::uint64_t i = 0; i < kBlocks; ++i) slots[i] = i;
        if (!in_order) std::ranges::shuffle(slots, std::mt19937(3));
        std::vector<Piece> pieces;
        for (std::uint64_t block = 0; block < kBlocks; ++block) {
          for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
            for (std::uint64_t outer = 0; outer < 2; ++outer) {
              const std::uint64_t whole = ((block * kLayers + layer) * 2 + outer) * piece_bytes;
              const std::uint64_t in_layer =
                  blocks_first ? slots[block] * 2 + outer : outer * kBlocks + slots[block];
              const std::uint64_t apart = layer * layer_bytes + in_layer * piece_bytes;
              pieces.push_back(to_layers ? Piece{apart, whole, piece_bytes}
                                         : Piece{whole, apart, piece_bytes});
            }
          }
        }
        expect_moved(pieces, kLayers * layer_bytes, kDirectRoutes);
      }
    }
  }
}

TEST_P(CopyFormTest, MovesMorePiecesThanOneCallTakes) {
  std::vector<Piece> pieces;
  for (std::uint64_t i = 0; i < 1500; ++i) pieces.push_back({i * 24, i * 32, 16});
  expect_moved(pieces, 1500 * 32, kDirectRoutes);
}

TEST_P(CopyFormTest, RunsInIssueOrderForAnyForms) {
  constexpr std::uint64_t kBytes = 4096;
  const Bytes bytes = varied_bytes(kBytes, 4);
  const std::size_t hops = std::size(kCopyForms) * 20;
  const Region row = of(StorageKind::device, kBytes * (hops + 1));
  move(row.data(), bytes.data(), kBytes);
  for (std::size_t i = 0; i < hops; ++i) {
    std::vector<MemoryCopy> copies;
    for (std::uint64_t at = 0; at < kBytes; at += 512) {
      // Alternates between the two halves, so that adjacent pieces are not merged.
      const std::uint64_t from = at % 1024 == 0 ? at / 2 : kBytes / 2 + (at - 512) / 2;
      copies.push_back({row.data() + kBytes * (i + 1) + from, row.data() + kBytes * i + from, 512});
    }
    stream_->copy(copies, kCopyForms[i % std::size(kCopyForms)]).value();
    stream_->zero(row.data() + kBytes * i, kBytes).value();
  }
  Bytes arrived(kBytes);
  move(arrived.data(), row.data() + kBytes * hops, kBytes);
  EXPECT_TRUE(arrived == bytes);
}

TEST_P(CopyFormTest, RefusesACopyWithoutASide) {
  const Region region = of(StorageKind::pinned, 8);
  const MemoryCopy no_source{region.data(), nullptr, 8};
  for (const CopyForm form : kCopyForms) {
    EXPECT_EQ(stream_->copy({&no_source, 1}, form).error().code, ErrorCode::device_error)
        << to_string(form);
    EXPECT_TRUE(stream_->copy({}, form).has_value()) << to_string(form);
  }
}

INSTANTIATE_TEST_SUITE_P(Runtimes, CopyFormTest, testing::ValuesIn(runtime_cases()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace cairn::conformance
