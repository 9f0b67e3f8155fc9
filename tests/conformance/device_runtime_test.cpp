// Tests of every DeviceRuntime.
#include "memory/device_runtime.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <random>
#include <thread>

#include "tests/conformance/runtime_case.hpp"

namespace cairn::conformance {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kMiB = 1 << 20;

Bytes random_bytes(std::size_t count, std::uint32_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> words(count / 8 + 1);
  for (std::uint64_t& word : words) word = random();
  const auto bytes = std::as_bytes(std::span(words)).first(count);
  return {bytes.begin(), bytes.end()};
}

class DeviceRuntimeTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    if (runtime_) stream_ = runtime_->create_stream(0).value();
  }
  void TearDown() override {
    stream_.reset();
    RuntimeTest::TearDown();
  }
  Region device(std::uint64_t size_bytes) {
    return runtime_->allocate_device(size_bytes, {}).value();
  }
  Region pinned(std::uint64_t size_bytes) {
    return runtime_->allocate_pinned(size_bytes, {}).value();
  }
  Region of(StorageKind kind, std::uint64_t size_bytes) {
    if (kind == StorageKind::device) return device(size_bytes);
    if (kind == StorageKind::pinned) return pinned(size_bytes);
    if (kind == StorageKind::unified) return runtime_->allocate_unified(0, size_bytes).value();
    return Region::system(size_bytes).value();
  }
  void finish(Stream& stream) { stream.record().value()->wait().value(); }
  void write(const Region& region, const Bytes& bytes) {
    const MemoryCopy copy{region.data(), bytes.data(), bytes.size()};
    stream_->copy({&copy, 1}).value();
    finish(*stream_);
  }
  Bytes read(const Region& region) {
    Bytes bytes(region.size_bytes());
    const MemoryCopy copy{bytes.data(), region.data(), bytes.size()};
    stream_->copy({&copy, 1}).value();
    finish(*stream_);
    return bytes;
  }

  std::unique_ptr<Stream> stream_;
};

TEST_P(DeviceRuntimeTest, NumbersItsDevicesFromZero) {
  ASSERT_FALSE(runtime_->devices().empty());
  int expected = 0;
  for (const DeviceInfo& info : runtime_->devices()) {
    EXPECT_EQ(info.id, expected++);
    EXPECT_FALSE(info.name.empty());
    EXPECT_GT(info.total_bytes, 0u);
  }
}

TEST_P(DeviceRuntimeTest, HasLostNoDevice) { EXPECT_EQ(runtime_->lost(), std::nullopt); }

TEST_P(DeviceRuntimeTest, AllocatesZeroedMemory) {
  for (const StorageKind kind : {StorageKind::device, StorageKind::pinned, StorageKind::unified}) {
    const Region region = of(kind, kMiB + 1);
    EXPECT_EQ(region.kind(), kind);
    EXPECT_EQ(read(region), Bytes(kMiB + 1)) << to_string(kind);
  }
}

TEST_P(DeviceRuntimeTest, AlignsMemoryToFourKibibytes) {
  for (const StorageKind kind : {StorageKind::device, StorageKind::pinned, StorageKind::unified}) {
    const Region first = of(kind, 1);
    const Region second = of(kind, 4097);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.data()) % 4096, 0u) << to_string(kind);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(second.data()) % 4096, 0u) << to_string(kind);
  }
}

TEST_P(DeviceRuntimeTest, MemoryNamesItsDevice) {
  const int last = static_cast<int>(runtime_->devices().size()) - 1;
  EXPECT_EQ(runtime_->allocate_device(1, {.device_id = last}).value().device_id(), last);
  EXPECT_EQ(runtime_->allocate_unified(last, 1).value().device_id(), last);
  EXPECT_EQ(runtime_->allocate_pinned(1, {.device_id = last}).value().device_id(), -1);
}

TEST_P(DeviceRuntimeTest, RefusesZeroBytes) {
  EXPECT_EQ(runtime_->allocate_device(0, {}).error().code, ErrorCode::out_of_range);
  EXPECT_EQ(runtime_->allocate_pinned(0, {}).error().code, ErrorCode::out_of_range);
  EXPECT_EQ(runtime_->allocate_unified(0, 0).error().code, ErrorCode::out_of_range);
}

TEST_P(DeviceRuntimeTest, RefusesAnUnknownDevice) {
  for (const int id : {-1, static_cast<int>(runtime_->devices().size())}) {
    EXPECT_EQ(runtime_->allocate_device(1, {.device_id = id}).error().code,
              ErrorCode::out_of_range);
    EXPECT_EQ(runtime_->allocate_unified(id, 1).error().code, ErrorCode::out_of_range);
    EXPECT_EQ(runtime_->allocate_pinned(1, {.device_id = id}).error().code,
              ErrorCode::out_of_range);
    EXPECT_EQ(runtime_->create_stream(id).error().code, ErrorCode::out_of_range);
  }
}

TEST_P(DeviceRuntimeTest, ReportsNoCapacityBeyondItsMemory) {
  const std::uint64_t too_much = 2 * runtime_->devices()[0].total_bytes;
  EXPECT_EQ(runtime_->allocate_device(too_much, {}).error().code, ErrorCode::no_capacity);
}

TEST_P(DeviceRuntimeTest, PinsMemoryNearADevice) {
  const Region region =
      runtime_->allocate_pinned(kMiB, {.numa_aware = true, .device_id = 0}).value();
  const Bytes bytes = random_bytes(kMiB, 1);
  write(region, bytes);
  EXPECT_EQ(std::memcmp(region.data(), bytes.data(), bytes.size()), 0);
}

TEST_P(DeviceRuntimeTest, CopiesBetweenAllKindsOfMemory) {
  const auto kinds = {StorageKind::system, StorageKind::pinned, StorageKind::device,
                      StorageKind::unified};
  std::uint32_t seed = 0;
  for (const StorageKind from : kinds) {
    for (const StorageKind to : kinds) {
      const Bytes bytes = random_bytes(100'003, ++seed);
      const Region source = of(from, bytes.size());
      const Region destination = of(to, bytes.size());
      write(source, bytes);
      const MemoryCopy copy{destination.data(), source.data(), bytes.size()};
      stream_->copy({&copy, 1}).value();
      EXPECT_EQ(read(destination), bytes) << to_string(from) << " to " << to_string(to);
    }
  }
}

TEST_P(DeviceRuntimeTest, CopiesALargeRegionWhole) {
  const Bytes bytes = random_bytes(64 * kMiB + 13, 2);
  const Region region = device(bytes.size());
  write(region, bytes);
  EXPECT_TRUE(read(region) == bytes);
}

TEST_P(DeviceRuntimeTest, CopiesSingleBytesAndNoNeighbours) {
  const Bytes bytes = random_bytes(4096, 3);
  const Region source = pinned(4096);
  const Region destination = device(4096);
  write(source, bytes);
  std::vector<MemoryCopy> copies;
  Bytes expected(4096);
  for (std::size_t i = 1; i < 4096; i += 3) {
    copies.push_back({destination.data() + i, source.data() + (4095 - i), 1});
    expected[i] = bytes[4095 - i];
  }
  stream_->copy(copies).value();
  EXPECT_EQ(read(destination), expected);
}

TEST_P(DeviceRuntimeTest, EmptyCopiesHaveNoEffect) {
  const Region region = pinned(1);
  const MemoryCopy empty{region.data(), nullptr, 0};
  EXPECT_TRUE(stream_->copy({}).has_value());
  EXPECT_TRUE(stream_->copy({&empty, 1}).has_value());
  EXPECT_TRUE(stream_->zero(nullptr, 0).has_value());
  EXPECT_EQ(read(region), Bytes(1));
}

TEST_P(DeviceRuntimeTest, RefusesACopyWithoutASide) {
  const Region region = pinned(8);
  const MemoryCopy no_source{region.data(), nullptr, 8};
  const MemoryCopy no_destination{nullptr, region.data(), 8};
  EXPECT_EQ(stream_->copy({&no_source, 1}).error().code, ErrorCode::device_error);
  EXPECT_EQ(stream_->copy({&no_destination, 1}).error().code, ErrorCode::device_error);
  EXPECT_EQ(stream_->zero(nullptr, 8).error().code, ErrorCode::device_error);
}

TEST_P(DeviceRuntimeTest, ZeroesExactlyTheRange) {
  Bytes bytes = random_bytes(kMiB, 4);
  const Region region = device(bytes.size());
  write(region, bytes);
  stream_->zero(region.data() + 101, 5000).value();
  std::fill_n(bytes.begin() + 101, 5000, std::byte{0});
  EXPECT_EQ(read(region), bytes);
}

TEST_P(DeviceRuntimeTest, SynchronizeWaitsForAllWork) {
  const Bytes bytes = random_bytes(kMiB, 6);
  const Region there = device(bytes.size());
  const Region back = pinned(bytes.size());
  for (int round = 0; round < 20; ++round) {
    stream_->zero(there.data(), there.size_bytes()).value();
    const MemoryCopy up{there.data(), bytes.data(), bytes.size()};
    stream_->copy({&up, 1}).value();
    const MemoryCopy down{back.data(), there.data(), bytes.size()};
    stream_->copy({&down, 1}).value();
    stream_->synchronize().value();
    ASSERT_EQ(std::memcmp(back.data(), bytes.data(), bytes.size()), 0) << round;
    std::memset(back.data(), 0, bytes.size());
  }
  EXPECT_TRUE(runtime_->create_stream(0).value()->synchronize()) << "without any work";
}

TEST_P(DeviceRuntimeTest, PrefetchesUnifiedMemoryOnly) {
  const Region unified = of(StorageKind::unified, kMiB);
  const Bytes bytes = random_bytes(kMiB, 5);
  write(unified, bytes);
  EXPECT_TRUE(stream_->prefetch(unified.view(), 0).has_value());
  EXPECT_TRUE(stream_->prefetch(unified.view(), -1).has_value());
  EXPECT_EQ(read(unified), bytes);
  EXPECT_EQ(stream_->prefetch(pinned(1).view(), 0).error().code, ErrorCode::device_error);
  const int unknown = static_cast<int>(runtime_->devices().size());
  EXPECT_EQ(stream_->prefetch(unified.view(), unknown).error().code, ErrorCode::out_of_range);
}

TEST_P(DeviceRuntimeTest, RunsAStreamInTheOrderOfIssue) {
  constexpr std::size_t kHops = 300;
  const Bytes bytes = random_bytes(4096, 6);
  const Region row = device(4096 * (kHops + 1));
  write(row, bytes);
  for (std::size_t i = 0; i < kHops; ++i) {
    const MemoryCopy hop{row.data() + 4096 * (i + 1), row.data() + 4096 * i, 4096};
    stream_->copy({&hop, 1}).value();
    stream_->zero(row.data() + 4096 * i, 4096).value();
  }
  Bytes expected(4096 * (kHops + 1));
  std::ranges::copy(bytes, expected.end() - 4096);
  EXPECT_EQ(read(row), expected);
}

TEST_P(DeviceRuntimeTest, IssuesWithoutWaitingForWorkUnderWay) {
  const auto gate = make_gate();
  ASSERT_NE(gate, nullptr);
  const Bytes bytes = random_bytes(4096, 7);
  const Region source = pinned(4096);
  const Region destination = device(4096);
  write(source, bytes);
  gate->hold(*stream_);
  const MemoryCopy copy{destination.data(), source.data(), 4096};
  stream_->copy({&copy, 1}).value();
  const auto event = stream_->record().value();
  EXPECT_FALSE(event->ready().value());
  gate->open();
  event->wait().value();
  EXPECT_TRUE(event->ready().value());
  EXPECT_EQ(read(destination), bytes);
}

TEST_P(DeviceRuntimeTest, AStreamWaitsForAnotherStreamsEvent) {
  const auto gate = make_gate();
  ASSERT_NE(gate, nullptr);
  const auto second = runtime_->create_stream(0).value();
  const Bytes bytes = random_bytes(4096, 8);
  const Region start = pinned(4096);
  const Region middle = device(4096);
  const Region end = pinned(4096);
  write(start, bytes);
  gate->hold(*stream_);
  const MemoryCopy there{middle.data(), start.data(), 4096};
  stream_->copy({&there, 1}).value();
  const auto arrived = stream_->record().value();
  second->wait_for(*arrived).value();
  const MemoryCopy back{end.data(), middle.data(), 4096};
  second->copy({&back, 1}).value();
  const auto done = second->record().value();
  EXPECT_FALSE(done->ready().value());
  gate->open();
  done->wait().value();
  EXPECT_EQ(std::memcmp(end.data(), bytes.data(), 4096), 0);
}

// A stream that has no use for a list in device memory asks for none.
TEST_P(DeviceRuntimeTest, CopiesByAListInDeviceMemory) {
  constexpr std::size_t kPieces = 500;
  constexpr std::size_t kPieceBytes = 64;
  const Bytes bytes = random_bytes(kPieces * kPieceBytes, 9);
  const Region start = pinned(bytes.size());
  const Region middle = device(bytes.size());
  write(start, bytes);
  std::vector<MemoryCopy> copies;
  for (std::size_t i = 0; i < kPieces; ++i) {
    copies.push_back({middle.data() + (kPieces - 1 - i) * kPieceBytes,
                      start.data() + i * kPieceBytes, kPieceBytes});
  }
  Region list;
  if (const std::uint64_t list_bytes = stream_->list_bytes(kPieces); list_bytes > 0) {
    list = device(list_bytes);
  }
  stream_->copy(copies, CopyForm::batch, list.view()).value();
  copies.clear();
  finish(*stream_);
  const Bytes arrived = read(middle);
  for (std::size_t i = 0; i < kPieces; ++i) {
    EXPECT_EQ(std::memcmp(arrived.data() + (kPieces - 1 - i) * kPieceBytes,
                          bytes.data() + i * kPieceBytes, kPieceBytes),
              0)
        << i;
  }
}

TEST_P(DeviceRuntimeTest, FewCopiesTravelWithTheWork) { EXPECT_EQ(stream_->list_bytes(1), 0u); }

TEST_P(DeviceRuntimeTest, AStreamDoesNotDelayOthers) {
  const auto gate = make_gate();
  ASSERT_NE(gate, nullptr);
  const auto second = runtime_->create_stream(0).value();
  gate->hold(*stream_);
  const auto held = stream_->record().value();
  finish(*second);
  EXPECT_FALSE(held->ready().value());
  gate->open();
  held->wait().value();
}

TEST_P(DeviceRuntimeTest, WaitsForAnEventThatIsDestroyedEarly) {
  const auto gate = make_gate();
  ASSERT_NE(gate, nullptr);
  const auto second = runtime_->create_stream(0).value();
  gate->hold(*stream_);
  auto event = stream_->record().value();
  second->wait_for(*event).value();
  event.reset();
  const auto after = second->record().value();
  EXPECT_FALSE(after->ready().value());
  gate->open();
  after->wait().value();
}

TEST_P(DeviceRuntimeTest, AnEmptyStreamsEventIsReached) {
  const auto event = runtime_->create_stream(0).value()->record().value();
  event->wait().value();
  EXPECT_TRUE(event->ready().value());
}

TEST_P(DeviceRuntimeTest, WakesEveryWaiterOfAnEvent) {
  const auto gate = make_gate();
  ASSERT_NE(gate, nullptr);
  gate->hold(*stream_);
  const auto event = stream_->record().value();
  std::vector<std::thread> waiters;
  for (int i = 0; i < 8; ++i) waiters.emplace_back([&] { event->wait().value(); });
  gate->open();
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_TRUE(event->ready().value());
}

TEST_P(DeviceRuntimeTest, WhenReachedRunsOnlyOnceTheEventIsReached) {
  const auto gate = make_gate();
  ASSERT_NE(gate, nullptr);
  gate->hold(*stream_);
  const auto event = stream_->record().value();
  std::atomic<int> calls{0};
  std::promise<bool> reached;
  event->when_reached([&] {
    ++calls;
    reached.set_value(event->ready().value());
  });
  EXPECT_EQ(calls, 0);
  gate->open();
  EXPECT_TRUE(reached.get_future().get());
  event->when_reached([&] { ++calls; });
  EXPECT_EQ(calls, 2) << "for a reached event it runs at once";
}

TEST_P(DeviceRuntimeTest, DestroyingAStreamFinishesItsWork) {
  constexpr std::size_t kCopies = 200;
  const Bytes bytes = random_bytes(4096, 9);
  const Region source = pinned(4096);
  const Region destination = device(4096 * kCopies);
  write(source, bytes);
  auto leaving = runtime_->create_stream(0).value();
  for (std::size_t i = 0; i < kCopies; ++i) {
    const MemoryCopy copy{destination.data() + 4096 * i, source.data(), 4096};
    leaving->copy({&copy, 1}).value();
  }
  const auto event = leaving->record().value();
  leaving.reset();
  EXPECT_TRUE(event->ready().value());
  const Bytes arrived = read(destination);
  for (std::size_t i = 0; i < kCopies; ++i) {
    ASSERT_EQ(std::memcmp(arrived.data() + 4096 * i, bytes.data(), 4096), 0) << "copy " << i;
  }
}

TEST_P(DeviceRuntimeTest, ServesManyThreadsWithTheirOwnStreams) {
  constexpr std::uint32_t kThreads = 8;
  std::vector<std::thread> threads;
  std::vector<int> wrong(kThreads, 0);
  for (std::uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto stream = runtime_->create_stream(0).value();
      for (std::uint32_t round = 0; round < 20; ++round) {
        const Bytes bytes = random_bytes(20'000, 1000 * t + round);
        const Region there = device(bytes.size());
        Bytes back(bytes.size());
        const MemoryCopy down{there.data(), bytes.data(), bytes.size()};
        const MemoryCopy up{back.data(), there.data(), bytes.size()};
        stream->copy({&down, 1}).value();
        stream->copy({&up, 1}).value();
        stream->record().value()->wait().value();
        if (back != bytes) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

INSTANTIATE_TEST_SUITE_P(Runtimes, DeviceRuntimeTest, testing::ValuesIn(runtime_cases()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace cairn::conformance
