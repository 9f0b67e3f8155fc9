#include "memory/cuda/cuda_copy_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace cairn {
namespace {

constexpr std::uint64_t kPiece = 4096;

// Only addresses; their bytes are never read.
std::byte* at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

std::byte* const kPinned = at(0x10'0000);  // four registrations
std::byte* const kDevice0 = at(0x20'0000);
std::byte* const kDevice1 = at(0x30'0000);
std::byte* const kUnified = at(0x40'0000);
std::byte* const kPageable = at(0x90'0000);
constexpr std::uint64_t kBytes = 4 * kPiece;

class CudaCopyPlanTest : public testing::Test {
 protected:
  void SetUp() override {
    addresses_.insert({kDevice1, kBytes, StorageKind::device, 1, kBytes});
    addresses_.insert({kPinned, kBytes, StorageKind::pinned, -1, kPiece});
    addresses_.insert({kUnified, kBytes, StorageKind::unified, 0, kBytes});
    addresses_.insert({kDevice0, kBytes, StorageKind::device, 0, kBytes});
  }
  Result<> add(const std::vector<MemoryCopy>& copies) { return plan_.add(copies, addresses_, 0); }

  CudaAddressMap addresses_;
  CudaCopyPlan plan_;
};

TEST_F(CudaCopyPlanTest, MergesPiecesAdjacentOnBothSides) {
  add({{kDevice0, kDevice0 + 8192, 100}, {kDevice0 + 100, kDevice0 + 8292, 50}}).value();
  ASSERT_EQ(plan_.batch.size(), 1u);
  EXPECT_EQ(plan_.batch[0].size_bytes, 150u);
}

TEST_F(CudaCopyPlanTest, DoesNotMergePiecesAdjacentOnOneSideOnly) {
  add({{kDevice0, kPinned, 100}, {kDevice0 + 100, kPinned + 101, 50}}).value();
  EXPECT_EQ(plan_.batch.size(), 2u);
}

TEST_F(CudaCopyPlanTest, CutsAtTheEndOfARegistration) {
  add({{kDevice0, kPinned + 4000, 5000}}).value();
  std::vector<std::uint64_t> sizes;
  for (const MemoryCopy& copy : plan_.batch) sizes.push_back(copy.size_bytes);
  EXPECT_THAT(sizes, testing::ElementsAre(96, 4096, 808));
}

TEST_F(CudaCopyPlanTest, ChoosesTheCallByTheKindsOfMemory) {
  add({{kDevice0, kPinned, 8}, {kPinned + 100, kDevice0 + 100, 8}, {kDevice0 + 200, kDevice0, 8}})
      .value();
  EXPECT_EQ(plan_.batch.size(), 3u);
  add({{kDevice0, kPageable, 8}, {kPageable, kPinned, 8}, {kPinned, kPinned + 64, 8}}).value();
  EXPECT_EQ(plan_.single.size(), 3u);
  add({{kUnified, kDevice0, 8}, {kDevice1, kPinned, 8}}).value();
  EXPECT_EQ(plan_.single.size(), 5u);  // unified memory, and a device that is not the stream's
  add({{kDevice1, kDevice0, 8}}).value();
  ASSERT_EQ(plan_.peer.size(), 1u);
  EXPECT_EQ(plan_.peer[0].destination_device, 1);
  EXPECT_EQ(plan_.peer[0].source_device, 0);
}

TEST_F(CudaCopyPlanTest, RefusesACopyPastTheEndOfItsMemory) {
  for (const MemoryCopy& copy :
       {MemoryCopy{kDevice0 + kBytes - 7, kPinned, 8},
        MemoryCopy{kDevice0, kPinned + kBytes - 7, 8}, MemoryCopy{kDevice0, kDevice1 - 7, 8}}) {
    plan_.clear();
    EXPECT_EQ(add({copy}).error().code, ErrorCode::device_error);
  }
}

TEST_F(CudaCopyPlanTest, RefusesACopyThatOverlapsItself) {
  EXPECT_EQ(add({{kPinned + 7, kPinned, 8}}).error().code, ErrorCode::device_error);
  EXPECT_EQ(add({{kPinned, kPinned + 7, 8}}).error().code, ErrorCode::device_error);
}

TEST_F(CudaCopyPlanTest, TreatsErasedMemoryAsPageable) {
  addresses_.erase(kDevice0);
  add({{kDevice0, kPinned, 8}}).value();
  EXPECT_EQ(plan_.single.size(), 1u);
}

// The planned copies, run byte by byte, move exactly the requested bytes.
TEST_F(CudaCopyPlanTest, MovesEveryByteOnceForAnyPieces) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    plan_.clear();
    std::vector<int> expected(kBytes, -1);
    std::vector<int> planned(kBytes, -1);
    std::vector<MemoryCopy> copies;
    for (std::uint64_t offset = random() % 100; offset < kBytes;) {
      const std::uint64_t length = std::min<std::uint64_t>(1 + random() % 3000, kBytes - offset);
      const bool straight = random() % 2 == 0;
      const std::uint64_t from = straight ? offset : random() % (kBytes - length + 1);
      copies.push_back({kPinned + offset, kDevice0 + from, length});
      std::iota(expected.begin() + static_cast<std::ptrdiff_t>(offset),
                expected.begin() + static_cast<std::ptrdiff_t>(offset + length),
                static_cast<int>(from));
      offset += length + (random() % 2) * (random() % 500);
    }
    add(copies).value();
    for (const MemoryCopy& copy : plan_.batch) {
      ASSERT_EQ((copy.destination - kPinned) / static_cast<std::ptrdiff_t>(kPiece),
                (copy.destination - kPinned + static_cast<std::ptrdiff_t>(copy.size_bytes) - 1) /
                    static_cast<std::ptrdiff_t>(kPiece));
      for (std::uint64_t i = 0; i < copy.size_bytes; ++i) {
        int& byte = planned[static_cast<std::size_t>(copy.destination - kPinned) + i];
        ASSERT_EQ(byte, -1);
        byte = static_cast<int>(copy.source - kDevice0) + static_cast<int>(i);
      }
    }
    ASSERT_EQ(planned, expected);
  }
}

}  // namespace
}  // namespace cairn
