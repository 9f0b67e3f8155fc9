#include <gmock/gmock.h>

#include <future>
#include <thread>

#include "server/routes/timer_queue.hpp"
#include "server/ticker.hpp"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The queue's thread is held until all entries are added. Otherwise a slow machine runs the first
// one before the others are added.
TEST(TimerQueue, RunsInTheOrderOfTheTimes) {
  std::vector<int> order;
  std::promise<void> all_added;
  std::promise<void> last;
  TimerQueue timers(10);
  const auto now = steady_clock::now();
  ASSERT_TRUE(timers.add(now, [&] { all_added.get_future().wait(); }));
  ASSERT_TRUE(timers.add(now + milliseconds(3), [&] {
    order.push_back(3);
    last.set_value();
  }));
  ASSERT_TRUE(timers.add(now + milliseconds(1), [&] { order.push_back(1); }));
  ASSERT_TRUE(timers.add(now + milliseconds(2), [&] { order.push_back(2); }));
  all_added.set_value();
  last.get_future().wait();
  EXPECT_THAT(order, ::testing::ElementsAre(1, 2, 3));
}

TEST(TimerQueue, DoesNotRunCancelledEntries) {
  TimerQueue timers(10);
  bool ran = false;
  const auto ticket = timers.add(steady_clock::now() + std::chrono::hours(1), [&] { ran = true; });
  ASSERT_TRUE(ticket);
  timers.cancel(*ticket);
  timers.flush();
  EXPECT_FALSE(ran);
}

TEST(TimerQueue, IsBounded) {
  TimerQueue timers(1);
  const auto later = steady_clock::now() + std::chrono::hours(1);
  EXPECT_TRUE(timers.add(later, [] {}));
  EXPECT_FALSE(timers.add(later, [] {}));
}

TEST(TimerQueue, FlushRunsEntriesBeforeTheirTime) {
  TimerQueue timers(10);
  int ran = 0;
  ASSERT_TRUE(timers.add(steady_clock::now() + std::chrono::hours(1), [&] { ++ran; }));
  timers.flush();
  timers.flush();
  EXPECT_EQ(ran, 1);
}

// Regression: the thread slept on, because the queue checked for a new first entry before it added
// it.
TEST(TimerQueue, WakesItsThreadForTheFirstEntry) {
  for (int i = 0; i < 20; ++i) {
    std::promise<void> idle;
    std::promise<void> done;
    TimerQueue timers(10);
    ASSERT_TRUE(timers.add(steady_clock::now(), [&] { idle.set_value(); }));
    idle.get_future().wait();
    // This is usually long enough for the thread to sleep. If not, the test proves less but passes.
    std::this_thread::yield();
    ASSERT_TRUE(timers.add(steady_clock::now() + milliseconds(1), [&] { done.set_value(); }));
    done.get_future().wait();
  }
}

TEST(TimerQueue, FunctionsMayAddMore) {
  std::promise<void> done;
  TimerQueue timers(10);
  ASSERT_TRUE(timers.add(steady_clock::now(), [&] {
    EXPECT_TRUE(timers.add(steady_clock::now(), [&] { done.set_value(); }));
  }));
  done.get_future().wait();
}

TEST(Ticker, CallsAgainAndAgain) {
  std::promise<void> third;
  int calls = 0;
  const Ticker ticker("test", milliseconds(1), [&] {
    if (++calls == 3) third.set_value();
  });
  third.get_future().wait();
}

}  // namespace
}  // namespace cairn
