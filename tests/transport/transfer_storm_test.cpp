// Several threads submit and cancel jobs at once. Every accepted job completes exactly once, and
// its bytes match its outcome.

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/fakes/manual_clock.hpp"
#include "tests/transport/support.hpp"

namespace cairn {
namespace {

using test::Arrangement;
using test::Bytes;
using test::Storage;

constexpr std::uint32_t kThreads = 4;
constexpr std::uint32_t kJobsPerThread = 150;
constexpr std::uint32_t kJobs = kThreads * kJobsPerThread;
constexpr StorageKind kKinds[] = {StorageKind::system, StorageKind::device, StorageKind::disk};

class TransferStorm : public testing::TestWithParam<bool> {
 protected:
  // Job i copies block 0 of a random source to block i of a random destination.
  struct Record {
    std::atomic<int> completions{0};
    JobState state{};
    std::size_t destination = 0;
    bool accepted = false;
  };

  void drive(std::uint32_t thread, std::uint64_t seed) {
    std::mt19937_64 random(seed + thread);
    std::vector<JobId> ids;
    for (std::uint32_t i = 0; i < kJobsPerThread; ++i) {
      const std::uint32_t number = thread * kJobsPerThread + i;
      Record& record = records_[number];
      record.destination = random() % std::size(kKinds);
      TransferJob job = storage_.make_job(sources_[random() % std::size(kKinds)],
                                          destinations_[record.destination], {{0, number}});
      job.urgency = static_cast<Urgency>(random() % kNumUrgencies);
      job.priority = static_cast<std::int32_t>(random() % 3);
      job.on_complete = [&record](JobOutcome outcome) {
        record.state = outcome.state;
        ++record.completions;
      };
      if (auto id = scheduler_->submit(std::move(job))) {
        record.accepted = true;
        ids.push_back(*id);
      }
      if (!ids.empty() && random() % 3 == 0) scheduler_->cancel(ids[random() % ids.size()]);
      if (random() % 8 == 0) clock_.advance_ms(1);
    }
  }

  Storage storage_;
  std::unique_ptr<DiskIo> disk_ = make_positional_disk_io();
  fakes::ManualClock clock_;
  std::vector<BlockLayout> sources_;
  std::vector<BlockLayout> destinations_;
  std::vector<Record> records_{kJobs};
  std::unique_ptr<TransferScheduler> scheduler_;
};

TEST_P(TransferStorm, EndsEveryAcceptedJobExactlyOnce) {
  const bool destroy_in_the_middle = GetParam();
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Bytes bytes = test::pattern(42, 240);
  for (StorageKind kind : kKinds) {
    sources_.push_back(storage_.make(kind, Arrangement::layer_second, Storage::small_shape(1)));
    storage_.write_block(sources_.back(), 0, bytes);
    destinations_.push_back(
        storage_.make(kind, Arrangement::contiguous, Storage::small_shape(kJobs)));
  }
  scheduler_ = std::make_unique<TransferScheduler>(
      storage_.runtime(), *disk_, clock_,
      TransferSchedulerOptions{.workers = 3, .max_queued_jobs = 64});

  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, i, seed] { drive(i, seed); });
  }
  for (std::thread& thread : threads) thread.join();
  if (!destroy_in_the_middle) {
    scheduler_->wait_idle();
    const TransferSchedulerStats stats = scheduler_->stats();
    EXPECT_EQ(stats.submitted + stats.rejected, kJobs);
    EXPECT_EQ(stats.done + stats.failed + stats.cancelled, stats.submitted);
    EXPECT_EQ(stats.queued + stats.running, 0u);
  }
  scheduler_.reset();

  for (std::uint32_t number = 0; number < kJobs; ++number) {
    const Record& record = records_[number];
    ASSERT_EQ(record.completions, record.accepted ? 1 : 0) << number;
    const Bytes arrived = storage_.read_block(destinations_[record.destination], number);
    if (record.accepted && record.state == JobState::done) {
      EXPECT_EQ(arrived, bytes) << number;
    } else {
      EXPECT_EQ(arrived, Bytes(240, Storage::kUntouched)) << number;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ends, TransferStorm, testing::Values(false, true), [](const auto& tested) {
  return std::string(tested.param ? "by_destruction" : "by_itself");
});

}  // namespace
}  // namespace cairn
