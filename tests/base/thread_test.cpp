#include "base/thread.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <stdexcept>

#include "base/memory_reserve.hpp"

namespace cairn {
namespace {

TEST(Guarded, CatchesAndReportsExceptions) {
  EXPECT_TRUE(guarded("test", [] {}));
  testing::internal::CaptureStderr();
  EXPECT_FALSE(guarded("test", [] { throw std::runtime_error("a reason"); }));
  EXPECT_FALSE(guarded("test", [] { throw 7; }));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("work=test why=\"a reason\""), std::string::npos) << said;
}

TEST(Thread, ExceptionEndsTheThreadAndNotTheProcess) {
  bool began = false;
  testing::internal::CaptureStderr();
  {
    const Thread thread("thrower", [&](const std::stop_token&) {
      began = true;
      throw std::bad_alloc();
    });
  }
  EXPECT_TRUE(began);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("work=thrower"), std::string::npos);
}

TEST(Thread, DestructorStopsAndJoins) {
  bool ended = false;
  {
    auto thread = Thread::start("waits for its end", [&](const std::stop_token& stop) {
      while (!stop.stop_requested()) std::this_thread::yield();
      ended = true;
    });
    ASSERT_TRUE(thread);
  }
  EXPECT_TRUE(ended);
}

// Calls the handler as operator new does if malloc fails.
TEST(MemoryReserve, HandlerFreesPartsAndThenThrows) {
  MemoryReserve reserve;
  EXPECT_FALSE(reserve.is_short());
  const std::new_handler handler = std::get_new_handler();
  ASSERT_NE(handler, nullptr);
  handler();
  EXPECT_TRUE(reserve.is_short());
  EXPECT_TRUE(reserve.refill());
  EXPECT_FALSE(reserve.is_short());
  EXPECT_EQ(reserve.shortages(), 1u);
  EXPECT_THROW(
      {
        for (int i = 0; i < 1000; ++i) handler();
      },
      std::bad_alloc);
  EXPECT_EQ(reserve.shortages(), 2u);
}

TEST(MemoryReserve, DestructorRemovesItsHandler) {
  { const MemoryReserve reserve; }
  EXPECT_EQ(std::get_new_handler(), nullptr);
}

}  // namespace
}  // namespace cairn
