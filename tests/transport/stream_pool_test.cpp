#include "transport/copy/stream_pool.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <future>
#include <utility>
#include <vector>

#include "base/task_threads.hpp"
#include "memory/host/host_runtime.hpp"

namespace cairn {
namespace {

using testing::ElementsAre;

class StreamPoolTest : public testing::Test {
 protected:
  // The set that the pool lends next; returns it at once.
  StreamSet* next() {
    std::promise<StreamSet*> lent;
    pool_.post([&](StreamPool::Held streams) {
      StreamSet* const set = streams.get();
      streams.reset();
      lent.set_value(set);
    });
    return lent.get_future().get();
  }
  StreamPool::Held take() {
    std::promise<StreamPool::Held> lent;
    pool_.post([&](StreamPool::Held streams) { lent.set_value(std::move(streams)); });
    return lent.get_future().get();
  }
  void TearDown() override { threads_.stop(); }

  const std::unique_ptr<DeviceRuntime> runtime_ = make_host_runtime({}).value();
  TaskThreads threads_{{.name = "test", .threads = 2}};
  DeviceMemory memory_{*runtime_};
  StreamPool pool_{*runtime_, memory_, threads_};
};

// Otherwise streams, each with a thread, would still be created long after the server's start.
TEST_F(StreamPoolTest, LendsTheLeastRecentlyUsedSet) {
  StreamSet* const first = next();
  StreamSet* const second = next();
  EXPECT_NE(first, second);
  EXPECT_EQ(next(), first);
  EXPECT_EQ(next(), second);
}

TEST_F(StreamPoolTest, ServesWaitersInOrder) {
  StreamPool::Held one = take();
  const StreamPool::Held other = take();
  std::vector<int> order;
  std::promise<void> all;
  for (int i = 0; i < 3; ++i) {
    pool_.post([&, i](StreamPool::Held) {
      order.push_back(i);  // one after the other: only one set is free
      if (i == 2) all.set_value();
    });
  }
  EXPECT_THAT(order, ElementsAre());
  one.reset();
  all.get_future().wait();
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
}

// At each post, runs the tasks that wait before it queues the new one.
class LateExecutor final : public Executor {
 public:
  std::uint32_t workers() const override { return 2; }
  void post(Task task) override {
    run_all();
    waiting_.push_back(std::move(task));
  }
  void wait(Mutex& /*mutex*/, Condition& /*changed*/) override { run_all(); }
  void sleep_for(Duration /*time*/) override {}
  void run_all() {
    while (!waiting_.empty()) {
      Task task = std::move(waiting_.front());
      waiting_.pop_front();
      task();
    }
  }

 private:
  std::deque<Task> waiting_;
};

// Another thread ran a transfer to its end and the scheduler was destroyed, while the disk's thread
// had not yet notified the scheduler's threads.
TEST(StreamPoolsEnd, WorkRunsOnlyAfterItsPostReturns) {
  const auto runtime = make_host_runtime({}).value();
  LateExecutor executor;
  DeviceMemory memory(*runtime);
  StreamPool pool(*runtime, memory, executor);
  bool posted = false;
  bool ran = false;
  // Its set comes back during the second post, where no work may wait for it.
  pool.post([](StreamPool::Held) {});
  pool.post([&](StreamPool::Held) {
    EXPECT_TRUE(posted);
    ran = true;
  });
  posted = true;
  executor.run_all();
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace cairn
