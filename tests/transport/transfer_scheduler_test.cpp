// Tests of the life of a job: order, limits, cancellation, completion.

#include "transport/transfer/transfer_scheduler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>
#include <thread>

#include "base/mutex.hpp"
#include "base/task_threads.hpp"
#include "memory/host/host_runtime.hpp"
#include "tests/fakes/faulty_runtime.hpp"
#include "tests/fakes/gated_disk_io.hpp"
#include "tests/fakes/manual_clock.hpp"
#include "tests/transport/support.hpp"

namespace cairn {
namespace {

using test::Arrangement;
using test::Bytes;
using test::PendingJob;
using test::Storage;
using testing::ElementsAre;

constexpr std::uint32_t kEngineBlocks = 8;

class TransferSchedulerTest : public testing::Test {
 protected:
  // One part at a time on disk, so that a job that waits at the gate blocks all later jobs.
  void start(TransferSchedulerOptions options = {
                 .workers = 1, .disk_threads = 1, .disk_parts = 1}) {
    scheduler_ = std::make_unique<TransferScheduler>(storage_.runtime(), gate_, clock_, options);
  }
  PendingJob hold_the_disk() {
    gate_.close();
    PendingJob held =
        test::submit(*scheduler_, storage_.make_job(on_disk_, held_destination_, {{0, 0}}));
    gate_.wait_for_calls(1);
    return held;
  }
  TransferJob copy(std::uint32_t block) const {
    return storage_.make_job(source_, destination_, {{block, block}});
  }
  BlockLayout make(StorageKind kind) {
    return storage_.make(kind, Arrangement::contiguous, Storage::small_shape(kEngineBlocks));
  }
  Bytes bytes_of(std::uint32_t block) {
    return test::pattern(block, source_.geometry().block_bytes());
  }
  bool untouched(std::uint32_t block) {
    return storage_.read_block(destination_, block) ==
           Bytes(destination_.geometry().block_bytes(), Storage::kUntouched);
  }

  Storage storage_;
  BlockLayout source_ = make(StorageKind::disk);
  BlockLayout destination_ = make(StorageKind::system);
  BlockLayout on_disk_ = make(StorageKind::disk);
  BlockLayout held_destination_ = make(StorageKind::system);
  BlockLayout memory_ = make(StorageKind::system);
  BlockLayout on_device_ = make(StorageKind::device);
  std::unique_ptr<DiskIo> disk_ = make_positional_disk_io();
  fakes::GatedDiskIo gate_{*disk_};
  fakes::ManualClock clock_;
  std::unique_ptr<TransferScheduler> scheduler_;
};

TEST_F(TransferSchedulerTest, BlocksNoThreadWhileADeviceCopies) {
  fakes::FaultyRuntime runtime(make_host_runtime({.devices = 2}).value());
  auto threads = std::make_unique<TaskThreads>(TaskThreads::Options{.name = "one", .threads = 1});
  TaskThreads& one = *threads;
  std::uint64_t done = 0;
  TransferScheduler scheduler(runtime, gate_, clock_, {.workers = 1}, std::move(threads));
  const BlockLayout pinned = make(StorageKind::pinned);
  for (const BlockLayout* other : std::initializer_list<const BlockLayout*>{&pinned, &source_}) {
    storage_.write_block(*other, 2, bytes_of(2));
    runtime.hold_callbacks();
    PendingJob copied = test::submit(scheduler, storage_.make_job(*other, on_device_, {{2, 5}}));
    runtime.wait_for_held(1);
    std::promise<void> ran;
    one.post([&] { ran.set_value(); });
    ran.get_future().wait();
    EXPECT_EQ(scheduler.stats().done, done);
    runtime.release_callbacks();
    EXPECT_EQ(copied.outcome.get().state, JobState::done);
    EXPECT_EQ(storage_.read_block(on_device_, 5), bytes_of(2));
    storage_.write_block(on_device_, 5, bytes_of(3));
    scheduler.wait_idle();
    ++done;
  }
}

TEST_F(TransferSchedulerTest, RunsByPriorityThenByAge) {
  start();
  PendingJob held = hold_the_disk();
  std::vector<int> order;  // one at a time
  const auto add = [&](int name, std::int32_t priority) {
    TransferJob job = copy(static_cast<std::uint32_t>(name));
    job.priority = priority;
    job.on_complete = [&order, name](JobOutcome) { order.push_back(name); };
    ASSERT_TRUE(scheduler_->submit(std::move(job)));
  };
  add(1, -5);
  add(2, 0);
  add(3, 7);
  add(4, 0);
  add(6, std::numeric_limits<std::int32_t>::min());
  gate_.open();
  scheduler_->wait_idle();
  EXPECT_THAT(order, ElementsAre(3, 2, 4, 1, 6));
}

TEST_F(TransferSchedulerTest, RaisesAWaitingJobButNotARunningOne) {
  start();
  PendingJob held = hold_the_disk();
  std::vector<int> order;
  std::vector<JobId> ids;
  for (int name = 0; name < 3; ++name) {
    TransferJob job = copy(static_cast<std::uint32_t>(name));
    job.on_complete = [&order, name](JobOutcome) { order.push_back(name); };
    ids.push_back(scheduler_->submit(std::move(job)).value());
  }
  EXPECT_FALSE(scheduler_->raise(held.id, {.priority = 9}));
  EXPECT_TRUE(scheduler_->raise(ids[2], {.priority = 9}));
  EXPECT_EQ(scheduler_->stats().queued, 3u);
  gate_.open();
  scheduler_->wait_idle();
  EXPECT_THAT(order, ElementsAre(2, 0, 1));
  EXPECT_FALSE(scheduler_->raise(ids[1], {.priority = 9})) << "the job has ended";
}

TEST_F(TransferSchedulerTest, RefusesAJobIfTheQueueIsFullAndReturnsIt) {
  start({.workers = 1, .max_queued_jobs = 2, .disk_threads = 1, .disk_parts = 1});
  PendingJob held = hold_the_disk();
  PendingJob first = test::submit(*scheduler_, copy(0));
  PendingJob second = test::submit(*scheduler_, copy(1));
  int completions = 0;
  TransferJob job = copy(2);
  job.on_complete = [&](JobOutcome) { ++completions; };

  const auto refused = scheduler_->submit(std::move(job));

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::queue_full);
  EXPECT_EQ(scheduler_->stats().queued, 2u);
  EXPECT_EQ(scheduler_->stats().rejected, 1u);
  gate_.open();
  scheduler_->wait_idle();
  EXPECT_EQ(completions, 0);
  // The refused job is unchanged: it can be submitted again.
  ASSERT_TRUE(scheduler_->submit(std::move(job)));
  scheduler_->wait_idle();
  EXPECT_EQ(completions, 1);
}

TEST_F(TransferSchedulerTest, CancelsAWaitingJob) {
  start();
  PendingJob held = hold_the_disk();
  PendingJob waiting = test::submit(*scheduler_, copy(3));
  EXPECT_TRUE(scheduler_->cancel(waiting.id));
  ASSERT_EQ(waiting.outcome.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  EXPECT_EQ(waiting.outcome.get().state, JobState::cancelled);
  EXPECT_FALSE(scheduler_->cancel(waiting.id)) << "the job has ended";
  gate_.open();
  scheduler_->wait_idle();
  EXPECT_TRUE(untouched(3));
  EXPECT_EQ(scheduler_->stats().cancelled, 1u);
}

TEST_F(TransferSchedulerTest, DoesNotCancelARunningJob) {
  start();
  PendingJob held = hold_the_disk();
  EXPECT_FALSE(scheduler_->cancel(held.id));
  gate_.open();
  EXPECT_EQ(held.outcome.get().state, JobState::done);
}

TEST_F(TransferSchedulerTest, DoesNotCancelAnUnknownJob) {
  start();
  EXPECT_FALSE(scheduler_->cancel(JobId{12345}));
}

TEST_F(TransferSchedulerTest, ReportsHowLongAJobWaitedAndRan) {
  start();
  PendingJob held = hold_the_disk();
  clock_.advance_ms(3);
  PendingJob waiting = test::submit(*scheduler_, copy(0));
  clock_.advance_ms(4);
  gate_.open();
  const JobOutcome ran = held.outcome.get();
  EXPECT_EQ(ran.queued, Duration::zero());
  EXPECT_EQ(ran.running, std::chrono::milliseconds(7));
  const JobOutcome waited = waiting.outcome.get();
  EXPECT_EQ(waited.queued, std::chrono::milliseconds(4));
  EXPECT_EQ(waited.running, Duration::zero());
}

TEST_F(TransferSchedulerTest, DestructorCancelsWaitingJobsAndFinishesRunningOnes) {
  start();
  storage_.write_block(on_disk_, 0, bytes_of(0));
  PendingJob held = hold_the_disk();
  std::optional<JobOutcome> waiting;
  std::optional<Error> refusal;
  TransferJob job = copy(1);
  job.on_complete = [&](JobOutcome outcome) {
    waiting = std::move(outcome);
    auto again = scheduler_->submit(copy(2));
    if (!again) refusal = again.error();
    gate_.open();
  };
  ASSERT_TRUE(scheduler_->submit(std::move(job)));

  scheduler_.get_deleter()(scheduler_.get());  // the completion still needs the pointer
  (void)scheduler_.release();

  ASSERT_TRUE(waiting.has_value());
  EXPECT_EQ(waiting->state, JobState::cancelled);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->code, ErrorCode::unavailable);
  EXPECT_EQ(held.outcome.get().state, JobState::done);
  EXPECT_EQ(storage_.read_block(held_destination_, 0), bytes_of(0));
  EXPECT_TRUE(untouched(1));
}

TEST_F(TransferSchedulerTest, WaitIdleWaitsForAJobThatACompletionSubmits) {
  start();
  std::atomic<int> ended{0};
  UniqueFunction<void(std::uint32_t)> chain;
  chain = [&](std::uint32_t block) {
    TransferJob job = copy(block);
    job.on_complete = [&, block](JobOutcome outcome) {
      EXPECT_EQ(outcome.state, JobState::done);
      ++ended;
      if (block + 1 < kEngineBlocks) chain(block + 1);
    };
    EXPECT_TRUE(scheduler_->submit(std::move(job)));
  };
  chain(0);
  scheduler_->wait_idle();
  EXPECT_EQ(ended, static_cast<int>(kEngineBlocks));
}

TEST_F(TransferSchedulerTest, CountsJobsByState) {
  start();
  PendingJob held = hold_the_disk();
  PendingJob waiting = test::submit(*scheduler_, copy(0));
  PendingJob cancelled = test::submit(*scheduler_, copy(1));
  scheduler_->cancel(cancelled.id);
  TransferSchedulerStats stats = scheduler_->stats();
  EXPECT_EQ(stats.running, 1u);
  EXPECT_EQ(stats.queued, 1u);
  EXPECT_EQ(stats.submitted, 3u);
  gate_.open();
  scheduler_->wait_idle();
  stats = scheduler_->stats();
  EXPECT_EQ(stats.running, 0u);
  EXPECT_EQ(stats.queued, 0u);
  EXPECT_EQ(stats.done, 2u);
  EXPECT_EQ(stats.cancelled, 1u);
  EXPECT_EQ(stats.bytes_moved, 2 * source_.geometry().block_bytes());
}

TEST_F(TransferSchedulerTest, AJobWithoutPairsEndsAsDone) {
  start();
  for (const BlockLayout* side : {&destination_, &on_device_, &on_disk_}) {
    const JobOutcome outcome = test::run(*scheduler_, storage_.make_job(memory_, *side, {}));
    EXPECT_EQ(outcome.state, JobState::done);
    EXPECT_EQ(outcome.bytes_moved, 0u);
  }
}

TEST_F(TransferSchedulerTest, AJobWithoutACompletionRuns) {
  start();
  storage_.write_block(source_, 6, bytes_of(6));
  ASSERT_TRUE(scheduler_->submit(copy(6)));
  scheduler_->wait_idle();
  EXPECT_EQ(storage_.read_block(destination_, 6), bytes_of(6));
}

TEST_F(TransferSchedulerTest, RefusesImpossibleJobs) {
  start();
  LayoutConfig other_shape = Storage::small_shape(kEngineBlocks);
  other_shape.page_size += 1;
  const BlockLayout other =
      storage_.make(StorageKind::system, Arrangement::contiguous, other_shape);
  const auto refusal = [&](TransferJob job) {
    auto refused = scheduler_->submit(std::move(job));
    return refused ? "accepted" : std::string(to_string(refused.error().code));
  };
  const auto job = [&](const BlockLayout& from, const BlockLayout& to,
                       std::vector<BlockPair> pairs = {{0, 0}}) {
    return storage_.make_job(from, to, std::move(pairs));
  };
  TransferJob without_slots = job(on_disk_, memory_);
  without_slots.slots = nullptr;
  TransferJob without_disk = job(on_disk_, memory_);
  without_disk.source = &destination_;
  TransferJob prefetch = job(memory_, on_device_);
  prefetch.operation = JobOperation::prefetch;
  std::vector<std::string> refusals = {
      refusal(TransferJob{}),
      refusal(job(memory_, other)),
      refusal(job(memory_, destination_, {{0, 5}, {1, 2}, {2, 5}})),
      refusal(job(memory_, memory_, {{0, 1}, {1, 2}})),
      refusal(job(memory_, memory_, {{3, 3}})),
      refusal(job(source_, on_disk_)),
      refusal(std::move(without_slots)),
      refusal(std::move(without_disk)),
      refusal(std::move(prefetch)),
  };
  EXPECT_THAT(refusals, testing::Each("impossible"));
  EXPECT_EQ(refusal(job(memory_, destination_, {{kEngineBlocks, 0}})), "out_of_range");
  EXPECT_EQ(refusal(job(memory_, destination_, {{0, kEngineBlocks}})), "out_of_range");
  EXPECT_EQ(scheduler_->stats().rejected, refusals.size() + 2);
  EXPECT_EQ(scheduler_->stats().submitted, 0u);
}

}  // namespace
}  // namespace cairn
