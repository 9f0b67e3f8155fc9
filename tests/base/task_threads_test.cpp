#include "base/task_threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>

namespace cairn {
namespace {

TEST(TaskThreads, RunEveryTaskBeforeTheyEnd) {
  std::atomic<int> ran{0};
  {
    TaskThreads threads({.name = "test", .threads = 3});
    for (int i = 0; i < 100; ++i) {
      threads.post([&] {
        ++ran;
        threads.post([&] { ++ran; });
      });
    }
  }
  EXPECT_EQ(ran, 200);
}

TEST(TaskThreads, SingleThreadRunsTasksInOrder) {
  std::vector<int> order;
  {
    TaskThreads threads({.name = "test", .threads = 1});
    for (int i = 0; i < 5; ++i) threads.post([&order, i] { order.push_back(i); });
  }
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(TaskThreads, RunTasksInParallel) {
  std::atomic<int> begun{0};
  {
    TaskThreads threads({.name = "test", .threads = 2});
    // Each task waits for the other to begin, so a single thread would never finish.
    for (int i = 0; i < 2; ++i) {
      threads.post([&] {
        ++begun;
        while (begun < 2) std::this_thread::yield();
      });
    }
  }
  EXPECT_EQ(begun, 2);
}

TEST(TaskThreads, ThrowingTaskDoesNotEndItsThread) {
  bool ran = false;
  testing::internal::CaptureStderr();
  {
    TaskThreads threads({.name = "thrower", .threads = 1});
    threads.post([] { throw std::runtime_error("a reason"); });
    threads.post([&] { ran = true; });
  }
  EXPECT_TRUE(ran);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("work=thrower"), std::string::npos);
}

TEST(TaskThreads, RefuseMoreThanTheirQueueHolds) {
  std::promise<void> started;
  std::promise<void> go_on;
  int ran = 0;
  {
    TaskThreads threads({.name = "test", .max_queued = 1});
    ASSERT_TRUE(threads.try_post([&] {
      started.set_value();
      go_on.get_future().wait();
    }));
    started.get_future().wait();
    EXPECT_TRUE(threads.try_post([&] { ++ran; }));
    EXPECT_FALSE(threads.try_post([&] { ++ran; }));
    go_on.set_value();
  }
  EXPECT_EQ(ran, 1);
}

TEST(TaskThreads, RunQueuedTasksBeforeTheyStop) {
  int ran = 0;
  TaskThreads threads({.name = "test"});
  for (int i = 0; i < 5; ++i) threads.post([&] { ++ran; });
  threads.stop();
  EXPECT_EQ(ran, 5);
}

}  // namespace
}  // namespace cairn
