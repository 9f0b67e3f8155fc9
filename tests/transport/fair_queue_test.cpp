#include "transport/transfer/fair_queue.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn {
namespace {

using testing::ElementsAre;

TimePoint at_ms(int ms) { return TimePoint(std::chrono::milliseconds(ms)); }

constexpr FairQueue::Classes kAll = {true, true, true, true, true};
constexpr std::uint64_t kPairBytes = 32'000;  // a multiple of every weight

class FairQueueTest : public testing::Test {
 protected:
  struct Given {
    Urgency urgency = Urgency::client;
    std::int32_t priority = 0;
    std::size_t pairs = 1;
    TimePoint came = at_ms(1000);
  };
  void push(std::uint64_t id) { push(id, Given()); }
  void push(std::uint64_t id, Given given) {
    auto job = std::make_shared<ActiveJob>(JobId{id}, given.came);
    job->job.urgency = given.urgency;
    job->job.priority = given.priority;
    job->job.pairs.resize(given.pairs);
    queue_.push(std::move(job));
  }
  // Takes the next pair and returns its job's id; 0 if there is none.
  std::uint64_t take(TimePoint now = at_ms(1000), FairQueue::Classes classes = kAll) {
    const auto* const front = queue_.front(classes);
    if (front == nullptr) return 0;
    const std::shared_ptr<ActiveJob> job = *front;
    queue_.taken(*job, {.next = job->next + 1, .bytes = kPairBytes}, now);
    return job->id.value;
  }
  std::vector<std::uint64_t> take_all() {
    std::vector<std::uint64_t> ids;
    while (const std::uint64_t id = take()) ids.push_back(id);
    return ids;
  }

  FairQueue queue_;
};

TEST_F(FairQueueTest, OrdersAClassByPriorityThenAge) {
  push(1, {.priority = -5});
  push(2);
  push(3, {.priority = 7});
  push(4);
  push(5, {.priority = std::numeric_limits<std::int32_t>::min()});
  push(6, {.priority = std::numeric_limits<std::int32_t>::max()});
  EXPECT_THAT(take_all(), ElementsAre(6, 3, 2, 4, 1, 5));
}

// A step of priority is worth 10 ms, so no job starves.
TEST_F(FairQueueTest, LongWaitingJobOvertakesAHigherPriority) {
  push(1, {.priority = 0, .came = at_ms(1000)});
  push(2, {.priority = 5, .came = at_ms(1049)});
  EXPECT_EQ(take(), 2u);
  push(3, {.priority = 5, .came = at_ms(1051)});
  EXPECT_EQ(take(), 1u);
}

TEST_F(FairQueueTest, LargeJobYieldsToJobsThatCameMeanwhile) {
  push(1, {.pairs = 3, .came = at_ms(1000)});
  EXPECT_EQ(take(at_ms(1005)), 1u);
  push(2, {.came = at_ms(1004)});
  EXPECT_EQ(take(at_ms(1006)), 2u);
  EXPECT_EQ(take(at_ms(1007)), 1u);
  EXPECT_EQ(take(at_ms(1008)), 1u);
  EXPECT_EQ(take(at_ms(1009)), 0u);
}

TEST_F(FairQueueTest, WaitingClassesShareTheBytesByWeight) {
  push(1, {.urgency = Urgency::client, .pairs = 2000});
  push(2, {.urgency = Urgency::allocation, .pairs = 2000});
  push(3, {.urgency = Urgency::background, .pairs = 2000});
  push(4, {.urgency = Urgency::engine, .pairs = 4000});
  std::array<int, 5> served{};
  for (int i = 0; i < 4500; ++i) ++served[take()];
  EXPECT_NEAR(served[1], 800, 3);
  EXPECT_NEAR(served[2], 400, 3);
  EXPECT_NEAR(served[3], 100, 3);
  EXPECT_NEAR(served[4], 3200, 3);
}

TEST_F(FairQueueTest, IdleClassEarnsNoCredit) {
  push(1, {.urgency = Urgency::client, .pairs = 1000});
  for (int i = 0; i < 500; ++i) EXPECT_EQ(take(), 1u);
  push(2, {.urgency = Urgency::background, .pairs = 1000});
  int background = 0;
  for (int i = 0; i < 90; ++i) background += take() == 2 ? 1 : 0;
  EXPECT_NEAR(background, 10, 2);
}

TEST_F(FairQueueTest, SkipsAClassThatIsNotAllowed) {
  push(1, {.urgency = Urgency::allocation});
  push(2, {.urgency = Urgency::client});
  EXPECT_EQ(take(at_ms(1000), {true, false, true, true}), 1u);
  EXPECT_EQ(take(at_ms(1000), {true, false, true, true}), 0u);
  EXPECT_EQ(take(), 2u);
}

TEST_F(FairQueueTest, AStartedJobIsNotRemovedOrRaised) {
  push(1, {.pairs = 2});
  EXPECT_EQ(take(), 1u);
  EXPECT_EQ(queue_.waiting(), 0u);
  EXPECT_EQ(queue_.remove(JobId{1}), nullptr);
  EXPECT_FALSE(queue_.raise(JobId{1}, {.priority = 5}));
  EXPECT_TRUE(queue_.remove_waiting().empty());
  EXPECT_EQ(take(), 1u);
}

TEST_F(FairQueueTest, RaisedJobIsOrderedByAgeWithinItsNewPriority) {
  for (std::uint64_t id = 1; id <= 4; ++id) push(id, {.priority = id == 1 || id == 3 ? 0 : 5});
  EXPECT_TRUE(queue_.raise(JobId{3}, {.priority = 5}));
  EXPECT_TRUE(queue_.raise(JobId{4}, {.priority = -1}))
      << "the job waits, but its priority is not lowered";
  EXPECT_THAT(take_all(), ElementsAre(2, 3, 4, 1));
}

TEST_F(FairQueueTest, ARaisedJobGetsTheHigherClass) {
  constexpr FairQueue::Classes kOnlyClients = {false, true, false, false, false};
  push(1, {.urgency = Urgency::prefetch});
  EXPECT_EQ(take(at_ms(1000), kOnlyClients), 0u);
  EXPECT_TRUE(queue_.raise(JobId{1}, {.urgency = Urgency::background}));
  EXPECT_EQ(take(at_ms(1000), kOnlyClients), 0u) << "a class is not lowered";
  EXPECT_TRUE(queue_.raise(JobId{1}, {.urgency = Urgency::client}));
  EXPECT_EQ(queue_.waiting(), 1u);
  EXPECT_EQ(take(at_ms(1000), kOnlyClients), 1u);
}

}  // namespace
}  // namespace cairn
