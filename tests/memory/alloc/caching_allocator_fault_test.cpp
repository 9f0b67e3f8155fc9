// Every driver call fails once, in turn.

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

#include "memory/alloc/caching_allocator.hpp"
#include "memory/host/host_runtime.hpp"
#include "tests/fakes/faulty_runtime.hpp"
#include "tests/memory/alloc/sizes.hpp"

namespace cairn {
namespace {

using fakes::Fault;
using fakes::FaultyRuntime;

constexpr std::uint64_t kSizes[] = {3 * kMiB, 100'000, 12 * kMiB, 700};

// Two streams use each other's buffers for a few rounds; the cache is emptied in between.
class Workload {
 public:
  explicit Workload(FaultyRuntime& runtime) : runtime_(runtime) {}

  void run() {
    for (int round = 0; round < 6; ++round) {
      std::vector<CachingAllocator::Buffer> held;
      for (const std::uint64_t size_bytes : kSizes) {
        auto buffer = allocator_.allocate(size_bytes, *own_);
        if (!buffer) {
          note(buffer.error());
          continue;
        }
        EXPECT_TRUE(in_use_.insert(buffer->data()).second) << "allocated twice";
        EXPECT_FALSE(lost_.contains(buffer->data())) << "its work may not have ended";
        other_->zero(buffer->data(), size_bytes).value();
        buffer->record_stream(*other_).value();
        held.push_back(std::move(*buffer));
      }
      for (CachingAllocator::Buffer& buffer : held) {
        const std::uint64_t failed = runtime_.failed();
        std::byte* const data = buffer.data();
        in_use_.erase(data);
        buffer.reset();
        if (runtime_.failed() != failed) lost_.insert(data);  // its event failed
      }
      finish(*other_);
      if (round % 2 == 1) {
        if (auto emptied = allocator_.empty_cache(); !emptied) note(emptied.error());
      }
      const AllocatorStatistics now = allocator_.statistics();
      EXPECT_EQ(now.reserved_bytes, now.allocated_bytes + now.cached_bytes);
      EXPECT_EQ(now.allocated_bytes, 0u);
    }
  }

  std::uint64_t errors() const { return errors_; }
  AllocatorStatistics statistics() { return allocator_.statistics(); }

 private:
  void finish(Stream& stream) {
    for (;;) {
      auto event = stream.record();
      auto done = event ? (*event)->wait() : Result<>(event.error());
      if (done) return;
      note(done.error());
    }
  }
  void note(const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::device_error);
    EXPECT_EQ(error.detail.find("injected"), 0u) << error.detail;
    ++errors_;
  }

  FaultyRuntime& runtime_;
  std::unique_ptr<Stream> own_ = runtime_.create_stream(0).value();
  std::unique_ptr<Stream> other_ = runtime_.create_stream(0).value();
  // Idle segments stay: a failure to return one loses nothing, so it is not reported.
  CachingAllocator allocator_{runtime_, {.idle_limit_bytes = ~0ull}};
  std::set<std::byte*> in_use_;
  std::set<std::byte*> lost_;
  std::uint64_t errors_ = 0;
};

class CachingAllocatorFaultTest : public testing::TestWithParam<Fault> {};

TEST_P(CachingAllocatorFaultTest, SurvivesAFailureOfAnySingleCall) {
  std::uint64_t n = 1;
  for (;; ++n) {
    SCOPED_TRACE("call " + std::to_string(n));
    FaultyRuntime runtime(make_host_runtime({}).value());
    Workload workload(runtime);
    runtime.fail_nth(GetParam(), n);
    workload.run();
    if (runtime.failed() == 0) break;
    // An unreported error cost at most the memory that it concerned.
    const AllocatorStatistics end = workload.statistics();
    EXPECT_TRUE(workload.errors() == 1 || end.pending_bytes > 0) << "a failure had no effect";
    EXPECT_LE(end.pending_bytes, 14 * kMiB);
  }
  EXPECT_GT(n, 5u) << "the workload makes too few of these calls";
}
INSTANTIATE_TEST_SUITE_P(Calls, CachingAllocatorFaultTest,
                         testing::Values(Fault::allocate, Fault::record, Fault::event),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

TEST(CachingAllocatorFault, ServesAMissWhenReturningAnIdleSegmentFails) {
  FaultyRuntime runtime(make_host_runtime({}).value());
  const auto stream = runtime.create_stream(0).value();
  CachingAllocator allocator(runtime, {});
  (void)allocator.allocate(1, *stream).value();
  runtime.fail_nth(Fault::record, 1);
  (void)allocator.allocate(2 * kMiB, *stream).value();
  EXPECT_EQ(runtime.failed(), 1u);
  EXPECT_EQ(allocator.statistics().reserved_bytes, 22 * kMiB);
}

TEST(CachingAllocatorFault, KeepsMemoryThatItCannotReturnSafely) {
  FaultyRuntime runtime(make_host_runtime({}).value());
  const auto stream = runtime.create_stream(0).value();
  CachingAllocator allocator(runtime, {});
  (void)allocator.allocate(1, *stream).value();
  runtime.fail_nth(Fault::record, 1);
  EXPECT_EQ(allocator.empty_cache().error().code, ErrorCode::device_error);
  EXPECT_EQ(allocator.statistics().cached_bytes, 2 * kMiB);
  EXPECT_TRUE(allocator.empty_cache().has_value());
  EXPECT_EQ(allocator.statistics().reserved_bytes, 0u);
}

}  // namespace
}  // namespace cairn
