// Log, clock, lock and the owning function object.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/printable.hpp"
#include "base/unique_function.hpp"
#include "tests/fakes/manual_clock.hpp"

namespace cairn {
namespace {

using testing::HasSubstr;

class Log : public testing::Test {
 protected:
  Log() {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw std::runtime_error("no pipe");
    read_end_ = ends[0];
    write_end_ = ends[1];
  }
  ~Log() override {
    ::close(read_end_);
    ::close(write_end_);
  }
  std::string written(std::string_view message, std::initializer_list<LogField> fields) {
    Logger(clock_, write_end_, LogLevel::debug).info(message, fields);
    return everything();
  }
  std::string everything() {
    ::close(write_end_);
    write_end_ = -1;
    std::string text;
    std::array<char, 4096> buffer{};
    for (ssize_t n = 1; n > 0;) {
      n = ::read(read_end_, buffer.data(), buffer.size());
      if (n > 0) text.append(buffer.data(), static_cast<std::size_t>(n));
    }
    return text;
  }
  fakes::ManualClock clock_;
  int read_end_ = -1;
  int write_end_ = -1;
};

TEST_F(Log, WritesALineOfNamedValues) {
  clock_.advance_ms(7);
  EXPECT_EQ(written("started", {{"port", 7070}, {"share", 0.5}, {"ok", true}, {"cache", "a"}}),
            "time=2023-11-14T22:13:20.007Z level=info msg=started port=7070 share=0.5 ok=true "
            "cache=a\n");
}

TEST_F(Log, KeepsWhatAClientSendsOnOneLine) {
  EXPECT_THAT(written("bad key", {{"key", "a\nlevel=error \"x\" \\"}}),
              HasSubstr(R"(msg="bad key" key="a\x0alevel=error \"x\" \\")"));
}

TEST_F(Log, ShowsUnprintableBytesAsHex) {
  std::string all_bytes;
  for (int byte = 0; byte < 256; ++byte) all_bytes += static_cast<char>(byte);
  const std::string line = written("a", {{"f", all_bytes}});
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  for (const char c : line.substr(0, line.size() - 1)) EXPECT_TRUE(c >= ' ' && c <= '~') << line;
  EXPECT_EQ(printable("\xC3\x28\x9B\x1B[2J"), "\\xc3(\\x9b\\x1b[2J");
}

TEST_F(Log, WritesTheLargestNumbers) {
  EXPECT_THAT(written("n", {{"u", ~std::uint64_t{0}}, {"i", std::int64_t{-5}}}),
              HasSubstr("u=18446744073709551615 i=-5"));
}

TEST_F(Log, OmitsLinesBelowItsLevel) {
  {
    Logger logger(clock_, write_end_, LogLevel::warning);
    logger.info("quiet");
    logger.error("loud");
  }
  const std::string text = everything();
  EXPECT_THAT(text, HasSubstr("loud"));
  EXPECT_EQ(text.find("quiet"), std::string::npos);
}

TEST_F(Log, NeverMixesTheLinesOfThreads) {
  {
    Logger logger(clock_, write_end_, LogLevel::info);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i) logger.log(LogLevel::info, "same", {}, kEveryLine);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const std::string text = everything();
  const std::string line = text.substr(0, text.find('\n') + 1);
  std::string expected;
  for (int i = 0; i < 200; ++i) expected += line;
  EXPECT_EQ(text, expected);
}

TEST(SystemClock, NeverGoesBack) {
  const SystemClock clock;
  TimePoint last = clock.now();
  for (int i = 0; i < 1000; ++i) {
    const TimePoint now = clock.now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(SystemClock, ReturnsUnixTime) {
  const std::int64_t ms = SystemClock().unix_ms();
  EXPECT_GT(ms, 1'700'000'000'000);  // November 2023
  EXPECT_LT(ms, 10'000'000'000'000);
}

TEST(Mutex, LetsOneThreadInAtATime) {
  Mutex mutex;
  int count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10'000; ++i) {
        MutexLock lock(mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 40'000);
}

TEST(Mutex, TryLockFailsWhileItIsHeld) {
  Mutex mutex;
  MutexLock lock(mutex);
  bool taken = true;
  std::thread([&] { taken = mutex.try_lock(); }).join();
  EXPECT_FALSE(taken);
}

TEST(UniqueFunction, OwnsWhatItCalls) {
  const auto watched = std::make_shared<int>(1);
  UniqueFunction<int(int)> function = [held = std::make_unique<int>(2), watched](int n) {
    return *held + *watched + n;
  };
  UniqueFunction<int(int)> moved = std::move(function);
  EXPECT_EQ(moved(10), 13);
  EXPECT_EQ(watched.use_count(), 2);
  moved = {};
  EXPECT_EQ(watched.use_count(), 1);
}

TEST(UniqueFunction, KeepsStateFromCallToCall) {
  UniqueFunction<int()> next = [n = 0]() mutable { return ++n; };
  next();
  EXPECT_EQ(next(), 2);
}

TEST(UniqueFunction, KnowsWhetherItIsEmpty) {
  UniqueFunction<void()> empty;
  EXPECT_FALSE(empty);
  EXPECT_TRUE(UniqueFunction<void()>([] {}));
}

TEST(UniqueFunctionDeathTest, CallingAnEmptyOneAborts) {
  UniqueFunction<void()> empty;
  EXPECT_DEATH(empty(), "an empty function was called");
}

}  // namespace
}  // namespace cairn
