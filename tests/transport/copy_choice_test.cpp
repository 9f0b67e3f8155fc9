#include "transport/copy/copy_choice.hpp"

#include <gtest/gtest.h>

#include "transport/engine/job_rules.hpp"

namespace cairn {
namespace {

constexpr StorageKinds kLoad{StorageKind::pinned, StorageKind::device};
constexpr StorageKinds kStore{StorageKind::device, StorageKind::pinned};
constexpr StorageKinds kWithin{StorageKind::device, StorageKind::device};
constexpr MemoryVisibility kAlike = MemoryVisibility::system;

// A job of so many pieces of one size, as the default thresholds see it.
CopyForm form_of(StorageKinds kinds, std::uint64_t pieces, std::uint64_t piece_bytes,
                 MemoryVisibility visibility = kAlike) {
  return choose_form({.kinds = kinds, .pieces = pieces, .bytes = pieces * piece_bytes}, {},
                     visibility);
}

TEST(CopyChoiceTest, CopiesAFewPiecesOneByOneAndMoreInABatch) {
  EXPECT_EQ(form_of(kLoad, 1, 2 << 20), CopyForm::loop);
  EXPECT_EQ(form_of(kLoad, 3, 2 << 20), CopyForm::loop);
  EXPECT_EQ(form_of(kLoad, 4, 2 << 20), CopyForm::batch);
  EXPECT_EQ(form_of(kStore, 1000, 4096), CopyForm::batch);
}

TEST(CopyChoiceTest, LoadsManySmallPiecesByAKernel) {
  EXPECT_EQ(form_of(kLoad, 64, 28 << 10), CopyForm::kernel);
  EXPECT_EQ(form_of(kLoad, 63, 28 << 10), CopyForm::batch);
  EXPECT_EQ(form_of(kLoad, 64, (28 << 10) + 1), CopyForm::batch);
  EXPECT_EQ(form_of(kLoad, 64, 32 << 10), CopyForm::batch);
}

TEST(CopyChoiceTest, RearrangesADeviceByAKernel) {
  EXPECT_EQ(form_of(kWithin, 64, 32 << 10), CopyForm::kernel);
  EXPECT_EQ(form_of(kWithin, 2, 32 << 10), CopyForm::loop);
  EXPECT_EQ(form_of(kWithin, 64, 2 << 20), CopyForm::batch);
}

TEST(CopyChoiceTest, RunsNoKernelOnHostMemoryThatIsNotSeenAlike) {
  for (const MemoryVisibility visibility :
       {MemoryVisibility::device, MemoryVisibility::explicit_dma}) {
    EXPECT_EQ(form_of(kLoad, 1000, 4096, visibility), CopyForm::batch);
    EXPECT_EQ(form_of(kWithin, 1000, 4096, visibility), CopyForm::kernel);
  }
}

TEST(CopyChoiceTest, LeavesEverythingElseToTheRuntime) {
  for (const StorageKind kind : {StorageKind::system, StorageKind::unified}) {
    EXPECT_EQ(form_of({kind, StorageKind::device}, 1000, 4096), CopyForm::batch);
    EXPECT_EQ(form_of({StorageKind::device, kind}, 1000, 4096), CopyForm::batch);
  }
  EXPECT_EQ(form_of({StorageKind::pinned, StorageKind::pinned}, 1000, 4096), CopyForm::batch);
  EXPECT_EQ(form_of(kLoad, 0, 0), CopyForm::batch);
}

TEST(CopyChoiceTest, CopiesRowsWhereTheirRunsAreLongEnough) {
  CopyThresholds thresholds;
  thresholds.store.rows_least_rows = 8;
  CopyFacts facts{.kinds = kStore, .pieces = 64, .bytes = 64 << 15, .strided_runs = 8};
  EXPECT_EQ(choose_form(facts, thresholds, kAlike), CopyForm::rows);
  facts.strided_runs = 9;
  EXPECT_EQ(choose_form(facts, thresholds, kAlike), CopyForm::batch);
  facts.strided_runs = 0;  // not counted
  EXPECT_EQ(choose_form(facts, thresholds, kAlike), CopyForm::batch);
}

TEST(CopyChoiceTest, PrefersAKernelToRowsWhereBothMay) {
  CopyThresholds thresholds;
  thresholds.load.rows_least_rows = 2;
  const CopyFacts facts{.kinds = kLoad, .pieces = 64, .bytes = 64 << 12, .strided_runs = 1};
  EXPECT_EQ(choose_form(facts, thresholds, kAlike), CopyForm::kernel);
  EXPECT_EQ(choose_form(facts, thresholds, MemoryVisibility::device), CopyForm::rows);
}

Result<CopyStrategy> resolve(CopyStrategy wanted, StorageKinds kinds, MemoryVisibility visibility) {
  return resolve_strategy({.wanted = wanted, .kinds = kinds, .visibility = visibility});
}

TEST(CopyChoiceTest, TakesNoShortcutThroughUnifiedMemoryThatIsNotSeenAlike) {
  const StorageKinds unified{StorageKind::pinned, StorageKind::unified};
  EXPECT_EQ(*resolve(CopyStrategy::automatic, unified, kAlike), CopyStrategy::unified);
  EXPECT_EQ(*resolve(CopyStrategy::sync, unified, kAlike), CopyStrategy::sync);
  for (const MemoryVisibility visibility :
       {MemoryVisibility::device, MemoryVisibility::explicit_dma}) {
    EXPECT_EQ(*resolve(CopyStrategy::automatic, unified, visibility), CopyStrategy::stream);
    EXPECT_EQ(resolve(CopyStrategy::unified, unified, visibility).error().code,
              ErrorCode::impossible);
    EXPECT_EQ(resolve(CopyStrategy::sync, unified, visibility).error().code, ErrorCode::impossible);
    EXPECT_EQ(
        *resolve(CopyStrategy::automatic, {StorageKind::system, StorageKind::pinned}, visibility),
        CopyStrategy::sync);
    EXPECT_FALSE(cpu_reaches(StorageKind::unified, visibility));
    EXPECT_TRUE(cpu_reaches(StorageKind::pinned, visibility));
  }
}

}  // namespace
}  // namespace cairn
