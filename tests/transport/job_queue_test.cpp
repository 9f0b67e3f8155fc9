#include "transport/job_queue.hpp"

#include <gtest/gtest.h>

namespace cairn {
namespace {

std::unique_ptr<AcceptedJob> job(std::uint64_t id, std::optional<TimePoint> deadline = {}) {
  auto accepted = std::make_unique<AcceptedJob>();
  accepted->id = JobId{id};
  accepted->job.deadline = deadline;
  return accepted;
}

TimePoint at_ms(int ms) { return TimePoint(std::chrono::milliseconds(ms)); }

TEST(JobQueue, IsFullAtItsLimitAndHasRoomAgainAfterARemoval) {
  JobQueue queue(2);
  queue.push(job(1));
  EXPECT_FALSE(queue.full());
  queue.push(job(2));
  EXPECT_TRUE(queue.full());
  EXPECT_EQ(queue.remove(JobId{2})->id, JobId{2});
  EXPECT_FALSE(queue.full());
  EXPECT_EQ(queue.size(), 1u);
}

TEST(JobQueue, HandsOutAJobOnce) {
  JobQueue queue(4);
  queue.push(job(1, at_ms(5)));
  EXPECT_EQ(queue.pop()->id, JobId{1});
  EXPECT_EQ(queue.remove(JobId{1}), nullptr);
  EXPECT_EQ(queue.pop(), nullptr);
  EXPECT_TRUE(queue.remove_overdue(at_ms(100)).empty());
  EXPECT_TRUE(queue.remove_all().empty());
}

TEST(JobQueue, KnowsTheEarliestDeadlineOfThoseThatWait) {
  JobQueue queue(4);
  EXPECT_FALSE(queue.next_deadline().has_value());
  queue.push(job(1, at_ms(30)));
  queue.push(job(2));
  queue.push(job(3, at_ms(20)));
  EXPECT_EQ(queue.next_deadline(), at_ms(20));
  queue.remove(JobId{3});
  EXPECT_EQ(queue.next_deadline(), at_ms(30));
  queue.remove(JobId{1});
  EXPECT_FALSE(queue.next_deadline().has_value());
}

TEST(JobQueue, GivesUpThoseWhoseDeadlineIsNow) {
  JobQueue queue(4);
  queue.push(job(1, at_ms(10)));
  queue.push(job(2, at_ms(11)));
  queue.push(job(3, at_ms(10)));
  queue.push(job(4));
  EXPECT_TRUE(queue.remove_overdue(at_ms(9)).empty());
  EXPECT_EQ(queue.remove_overdue(at_ms(10)).size(), 2u);
  EXPECT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue.pop()->id, JobId{2});
}

TEST(JobQueue, ARaisedJobComesAmongThoseOfItsNewPriorityByAge) {
  JobQueue queue(5);
  for (std::uint64_t id = 1; id <= 4; ++id) {
    auto added = job(id, at_ms(100));
    added->job.priority = id == 1 || id == 3 ? 0 : 5;
    queue.push(std::move(added));
  }
  EXPECT_TRUE(queue.raise(JobId{3}, 5));
  EXPECT_TRUE(queue.raise(JobId{4}, -1)) << "it waits, and is not lowered";
  EXPECT_EQ(queue.size(), 4u);
  for (const std::uint64_t id : {2u, 3u, 4u, 1u}) EXPECT_EQ(queue.pop()->id, JobId{id});
  EXPECT_FALSE(queue.next_deadline().has_value());
}

TEST(JobQueue, ARaisedJobIsStillFoundByItsIdAndDeadline) {
  JobQueue queue(2);
  queue.push(job(1, at_ms(10)));
  queue.push(job(2));
  EXPECT_TRUE(queue.raise(JobId{1}, 7));
  EXPECT_TRUE(queue.raise(JobId{2}, 7));
  EXPECT_EQ(queue.remove_overdue(at_ms(10)).size(), 1u);
  EXPECT_EQ(queue.remove(JobId{2})->id, JobId{2});
  EXPECT_FALSE(queue.raise(JobId{2}, 8));
}

}  // namespace
}  // namespace cairn
