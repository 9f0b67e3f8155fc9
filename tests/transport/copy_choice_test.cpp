#include "transport/copy/copy_choice.hpp"

#include <gtest/gtest.h>

#include <chrono>

#include "memory/host/host_runtime.hpp"
#include "transport/copy/stream_copier.hpp"

namespace cairn {
namespace {

constexpr StorageKinds kLoad{StorageKind::pinned, StorageKind::device};
constexpr StorageKinds kStore{StorageKind::device, StorageKind::pinned};
constexpr StorageKinds kWithin{StorageKind::device, StorageKind::device};
constexpr MemoryVisibility kAlike = MemoryVisibility::system;

// The form of a job of `pieces` pieces of one size, with the default thresholds.
CopyForm form_of(StorageKinds kinds, std::uint64_t pieces, std::uint64_t piece_bytes,
                 MemoryVisibility visibility = kAlike) {
  return choose_form({.kinds = kinds, .pieces = pieces, .bytes = pieces * piece_bytes}, {},
                     visibility);
}

TEST(CopyChoiceTest, CopiesFewPiecesSinglyAndMoreInABatch) {
  EXPECT_EQ(form_of(kLoad, 1, 2 << 20), CopyForm::loop);
  EXPECT_EQ(form_of(kLoad, 3, 2 << 20), CopyForm::loop);
  EXPECT_EQ(form_of(kLoad, 4, 2 << 20), CopyForm::batch);
  EXPECT_EQ(form_of(kStore, 1000, 4096), CopyForm::batch);
}

TEST(CopyChoiceTest, LoadsManySmallPiecesWithAKernel) {
  EXPECT_EQ(form_of(kLoad, 64, 28 << 10), CopyForm::kernel);
  EXPECT_EQ(form_of(kLoad, 63, 28 << 10), CopyForm::batch);
  EXPECT_EQ(form_of(kLoad, 64, (28 << 10) + 1), CopyForm::batch);
  EXPECT_EQ(form_of(kLoad, 64, 32 << 10), CopyForm::batch);
}

TEST(CopyChoiceTest, RearrangesWithinADeviceWithAKernel) {
  EXPECT_EQ(form_of(kWithin, 64, 32 << 10), CopyForm::kernel);
  EXPECT_EQ(form_of(kWithin, 2, 32 << 10), CopyForm::loop);
  EXPECT_EQ(form_of(kWithin, 64, 2 << 20), CopyForm::batch);
}

TEST(CopyChoiceTest, RunsNoKernelOnHostMemoryWithDeviceVisibility) {
  EXPECT_EQ(form_of(kLoad, 1000, 4096, MemoryVisibility::device), CopyForm::batch);
  EXPECT_EQ(form_of(kLoad, 1000, 4096, MemoryVisibility::explicit_dma), CopyForm::kernel);
  EXPECT_EQ(form_of(kWithin, 1000, 4096, MemoryVisibility::device), CopyForm::kernel);
}

TEST(CopyChoiceTest, CopiesEverythingElseInABatch) {
  for (const StorageKind kind : {StorageKind::system, StorageKind::unified}) {
    EXPECT_EQ(form_of({kind, StorageKind::device}, 1000, 4096), CopyForm::batch);
    EXPECT_EQ(form_of({StorageKind::device, kind}, 1000, 4096), CopyForm::batch);
  }
  EXPECT_EQ(form_of({StorageKind::pinned, StorageKind::pinned}, 1000, 4096), CopyForm::batch);
  EXPECT_EQ(form_of(kLoad, 0, 0), CopyForm::batch);
}

TEST(CopyChoiceTest, CopiesRowsIfTheirRunsAreLongEnough) {
  CopyThresholds thresholds;
  thresholds.store.rows_least_rows = 8;
  CopyFacts facts{.kinds = kStore, .pieces = 64, .bytes = 64 << 15, .strided_runs = 8};
  EXPECT_EQ(choose_form(facts, thresholds, kAlike), CopyForm::rows);
  facts.strided_runs = 9;
  EXPECT_EQ(choose_form(facts, thresholds, kAlike), CopyForm::batch);
  facts.strided_runs = 0;  // not counted
  EXPECT_EQ(choose_form(facts, thresholds, kAlike), CopyForm::batch);
}

TEST(CopyChoiceTest, PrefersAKernelToRowsIfBothArePossible) {
  CopyThresholds thresholds;
  thresholds.load.rows_least_rows = 2;
  const CopyFacts facts{.kinds = kLoad, .pieces = 64, .bytes = 64 << 12, .strided_runs = 1};
  EXPECT_EQ(choose_form(facts, thresholds, kAlike), CopyForm::kernel);
  EXPECT_EQ(choose_form(facts, thresholds, MemoryVisibility::device), CopyForm::rows);
}

TEST(CopyStrategyTest, IsSyncIfNoDeviceTakesPart) {
  const CopyStrategies wanted{
      .load = CopyStrategy::polling, .store = CopyStrategy::async, .device = CopyStrategy::unified};
  for (const StorageKind from : {StorageKind::system, StorageKind::pinned, StorageKind::disk}) {
    for (const StorageKind to : {StorageKind::system, StorageKind::pinned, StorageKind::disk}) {
      EXPECT_EQ(choose_strategy({from, to}, wanted), CopyStrategy::sync);
    }
  }
}

TEST(CopyStrategyTest, IsTheConfiguredOneForItsDirection) {
  const CopyStrategies wanted{
      .load = CopyStrategy::polling, .store = CopyStrategy::sync, .device = CopyStrategy::async};
  for (const StorageKind of_device : {StorageKind::device, StorageKind::unified}) {
    for (const StorageKind host : {StorageKind::pinned, StorageKind::disk}) {
      EXPECT_EQ(choose_strategy({host, of_device}, wanted), CopyStrategy::polling);
      EXPECT_EQ(choose_strategy({of_device, host}, wanted), CopyStrategy::sync);
    }
    EXPECT_EQ(choose_strategy({of_device, StorageKind::device}, wanted), CopyStrategy::async);
  }
}

TEST(CopyStrategyTest, IsAsyncByDefaultAndUnifiedForUnifiedMemory) {
  for (const CopyStrategy asked : {CopyStrategy::automatic, CopyStrategy::unified}) {
    const CopyStrategies wanted{.load = asked, .store = asked, .device = asked};
    EXPECT_EQ(choose_strategy(kLoad, wanted), CopyStrategy::async);
    EXPECT_EQ(choose_strategy(kStore, wanted), CopyStrategy::async);
    EXPECT_EQ(choose_strategy(kWithin, wanted), CopyStrategy::async);
    for (const StorageKind other : {StorageKind::pinned, StorageKind::disk, StorageKind::device}) {
      EXPECT_EQ(choose_strategy({other, StorageKind::unified}, wanted), CopyStrategy::unified);
      EXPECT_EQ(choose_strategy({StorageKind::unified, other}, wanted), CopyStrategy::unified);
    }
  }
}

// Ready once ready() has been called `asks` times.
class LateEvent final : public Event {
 public:
  explicit LateEvent(int asks) : left_(asks) {}
  Result<bool> ready() override { return --left_ <= 0; }
  Result<> wait() override {
    waited_ = true;
    return {};
  }
  void when_reached(UniqueFunction<void()> then) override { then(); }
  int left() const { return left_; }
  bool waited() const { return waited_; }

 private:
  int left_;
  bool waited_ = false;
};

TEST(CopyStrategyTest, PollingChecksAtEachIntervalAndTheOthersWait) {
  LateEvent polled(4);
  const auto begun = std::chrono::steady_clock::now();
  ASSERT_TRUE(
      wait_for_event(polled, {.strategy = CopyStrategy::polling, .polling_interval_us = 2'000}));
  EXPECT_GE(std::chrono::steady_clock::now() - begun, std::chrono::microseconds(3 * 2'000));
  EXPECT_EQ(polled.left(), 0);
  EXPECT_FALSE(polled.waited());
  for (const CopyStrategy strategy :
       {CopyStrategy::sync, CopyStrategy::async, CopyStrategy::unified}) {
    LateEvent awaited(4);
    ASSERT_TRUE(wait_for_event(awaited, {.strategy = strategy, .polling_interval_us = 2'000}));
    EXPECT_TRUE(awaited.waited());
    EXPECT_EQ(awaited.left(), 4);
  }
}

// Records what is prefetched. Its other functions do nothing.
class PrefetchedStream final : public Stream {
 public:
  using Stream::copy;
  Result<> copy(std::span<const MemoryCopy>, CopyForm, const RegionView&) override { return {}; }
  Result<> zero(std::byte*, std::uint64_t) override { return {}; }
  Result<> prefetch(const RegionView& unified, int device_id) override {
    EXPECT_EQ(device_id, 3);
    sent.emplace_back(unified.data(), unified.size_bytes());
    return {};
  }
  Result<std::unique_ptr<Event>> record() override { return std::make_unique<LateEvent>(0); }
  Result<> wait_for(Event&) override { return {}; }

  std::vector<std::pair<std::byte*, std::uint64_t>> sent;
};

TEST(PrefetchTest, SendsAdjacentPartsInOneCallInAnyOrder) {
  const auto runtime = make_host_runtime({}).value();
  const Region first = runtime->allocate_unified(0, 4096).value();
  const Region second = runtime->allocate_unified(0, 4096).value();
  const RegionView regions[] = {first.view(), second.view()};
  const Place place{.regions = regions};
  std::vector<PlacePart> parts = {{1, {0, 64}},   {0, {128, 64}}, {0, {64, 64}},
                                  {0, {256, 32}}, {1, {64, 192}}, {0, {0, 64}}};
  PrefetchedStream stream;
  ASSERT_TRUE(prefetch_parts(stream, place, parts, {.device_id = 3}));
  const std::vector<std::pair<std::byte*, std::uint64_t>> expected = {
      {first.data(), 192}, {first.data() + 256, 32}, {second.data(), 256}};
  EXPECT_EQ(stream.sent, expected);
}

}  // namespace
}  // namespace cairn
