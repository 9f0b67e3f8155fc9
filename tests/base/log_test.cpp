// Tests a log that nobody reads, and one with too many lines.
#include "base/log.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/assert.hpp"
#include "base/line_writer.hpp"
#include "base/process_log.hpp"
#include "base/standard_files.hpp"
#include "base/thread.hpp"
#include "tests/fakes/manual_clock.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A pipe whose reader decides when it reads.
class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  }
  ~Pipe() {
    close_reader();
    close_writer();
  }
  int writer() const { return ends_[1]; }
  int reader() const { return ends_[0]; }
  void close_reader() { close(ends_[0]); }
  void close_writer() { close(ends_[1]); }
  // Fills the pipe to the last byte. Returns the number of bytes written.
  std::size_t fill() {
    const int flags = ::fcntl(writer(), F_GETFL);
    ::fcntl(writer(), F_SETFL, flags | O_NONBLOCK);
    std::size_t filled = 0;
    while (::write(writer(), "x", 1) == 1) ++filled;
    ::fcntl(writer(), F_SETFL, flags);
    return filled;
  }
  std::string read(std::size_t bytes) {
    std::string text;
    std::array<char, 4096> buffer{};
    while (text.size() < bytes) {
      const ssize_t n =
          ::read(reader(), buffer.data(), std::min(buffer.size(), bytes - text.size()));
      if (n <= 0) break;
      text.append(buffer.data(), static_cast<std::size_t>(n));
    }
    return text;
  }
  // Reads until the last writer has closed.
  void begin_reading() {
    reader_ = std::thread([this] { text_ += read(std::string::npos); });
  }
  // All lines, once every other writer has closed.
  std::vector<std::string> lines() {
    if (!reader_.joinable()) begin_reading();
    close_writer();
    reader_.join();
    std::istringstream text(text_);
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }

 private:
  static void close(int& fd) {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
  std::array<int, 2> ends_{-1, -1};
  std::thread reader_;
  std::string text_;  // only the reader uses it until it is joined
};

std::string line_of(int number) { return "line " + std::to_string(number) + "\n"; }

TEST(LineWriter, WritesQueuedLinesBeforeItsEnd) {
  Pipe pipe;
  {
    LineWriter writer(pipe.writer());
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(writer.write(line_of(i)));
  }
  EXPECT_THAT(pipe.lines(), ElementsAre("line 0", "line 1", "line 2"));
}

TEST(LineWriter, NeverWaitsForAReaderAndCountsLostLines) {
  Pipe pipe;
  const std::size_t filled = pipe.fill();
  constexpr int kLines = 100'000;  // more than the queue holds
  std::uint64_t dropped = 0;
  std::uint64_t refused = 0;
  {
    LineWriter writer(pipe.writer());
    for (int i = 0; i < kLines; ++i) refused += writer.write(line_of(i)) ? 0U : 1U;
    dropped = writer.dropped();
    EXPECT_EQ(pipe.read(filled).size(), filled);
    pipe.begin_reading();  // before the writer ends
  }
  EXPECT_EQ(dropped, refused);
  EXPECT_GT(dropped, 0u);
  const std::vector<std::string> lines = pipe.lines();
  EXPECT_EQ(lines.size() + dropped, static_cast<std::size_t>(kLines));
  EXPECT_EQ(lines.front(), "line 0");
}

TEST(LineWriter, EndsIfNobodyReads) {
  // Its thread waits in a write until the process ends, so the pipe must stay open.
  static Pipe* const pipe = new Pipe;
  pipe->fill();
  LineWriter writer(pipe->writer());
  EXPECT_TRUE(writer.write(line_of(0)));
  EXPECT_FALSE(writer.flush(std::chrono::milliseconds(1)));
}

TEST(LineWriter, WaitsOnANonblockingDescriptor) {
  Pipe pipe;
  const std::size_t filled = pipe.fill();
  ::fcntl(pipe.writer(), F_SETFL, O_NONBLOCK);
  {
    LineWriter writer(pipe.writer());
    EXPECT_TRUE(writer.write(line_of(0)));
    EXPECT_EQ(pipe.read(filled).size(), filled);
  }
  EXPECT_THAT(pipe.lines(), ElementsAre("line 0"));
}

TEST(LineWriter, CountsLinesLostWithoutAReader) {
  Pipe pipe;
  pipe.close_reader();
  LineWriter writer(pipe.writer());
  for (int i = 0; i < 3; ++i) writer.write(line_of(i));
  EXPECT_TRUE(writer.flush(std::chrono::minutes(1)));
  EXPECT_EQ(writer.dropped(), 3u);
}

TEST(LineWriter, CountsLinesLostToAFullDisk) {
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  {
    LineWriter writer(full);
    writer.write(line_of(0));
    EXPECT_TRUE(writer.flush(std::chrono::minutes(1)));
    EXPECT_EQ(writer.dropped(), 1u);
  }
  ::close(full);
}

TEST(LineWriter, ThreadTakesNoSignals) {
  Pipe pipe;
  sigset_t before;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  LineWriter writer(pipe.writer());
  sigset_t after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal = 1; signal < 32; ++signal) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal)) << signal;
  }
}

class LogRates : public testing::Test {
 protected:
  void refuse(int times, std::string_view reason = {}) {
    for (int i = 0; i < times; ++i) {
      log_->log(LogLevel::info, "refused", {{"n", said_++}}, {.reason = reason});
    }
  }
  std::vector<std::string> lines() {
    log_.reset();
    return pipe_.lines();
  }
  static std::ptrdiff_t count(const std::vector<std::string>& lines, std::string_view text) {
    return std::ranges::count_if(
        lines, [&](const std::string& line) { return line.find(text) != std::string::npos; });
  }

  static constexpr int kBurst = static_cast<int>(LogRate{}.burst);
  static constexpr int kPerSecond = static_cast<int>(LogRate{}.per_s);
  fakes::ManualClock clock_;
  Pipe pipe_;
  std::unique_ptr<Logger> log_ = std::make_unique<Logger>(clock_, pipe_.writer(), LogLevel::info);
  int said_ = 0;
};

TEST_F(LogRates, OneReasonHasABurstAndThenARate) {
  refuse(kBurst + 1'000);
  clock_.advance_ms(1'000);
  refuse(1'000);
  EXPECT_EQ(log_->left_out(), 2'000u - static_cast<unsigned>(kPerSecond));
  EXPECT_EQ(count(lines(), "msg=refused"), kBurst + kPerSecond);
}

TEST_F(LogRates, ReportsTheNumberOfOmittedLines) {
  refuse(kBurst + 77);
  log_->report_left_out();  // too early: less than a second
  clock_.advance_ms(1'000);
  log_->report_left_out();
  log_->report_left_out();  // nothing new to report
  refuse(kPerSecond + 3);
  const auto all = lines();  // the logger's end reports the rest
  EXPECT_EQ(count(all, "left out\""), 2);
  EXPECT_EQ(count(all,
                  "level=info msg=\"77 more lines of this reason left out\" of=refused "
                  "reason=\"\" left_out=77"),
            1);
  EXPECT_EQ(count(all, "left_out=3"), 1);
}

TEST_F(LogRates, EachReasonHasItsOwnRate) {
  refuse(kBurst * 10, "401");
  refuse(1, "403");
  log_->error("disk");
  const auto all = lines();
  EXPECT_EQ(count(all, "msg=refused"), kBurst + 1);
  EXPECT_EQ(count(all, "msg=disk"), 1);
}

TEST_F(LogRates, UnboundedLinesAreNeverOmitted) {
  for (int i = 0; i < kBurst * 5; ++i) log_->log(LogLevel::info, "done", {}, kEveryLine);
  EXPECT_EQ(count(lines(), "msg=done"), kBurst * 5);
}

TEST_F(LogRates, ExcessReasonsShareOneRate) {
  constexpr int kMany = static_cast<int>(Logger::kMaxReasons) * 4;
  for (int i = 0; i < kMany; ++i) refuse(1, std::to_string(i));
  EXPECT_LE(count(lines(), "msg=refused"), static_cast<int>(Logger::kMaxReasons) + kBurst);
}

TEST_F(LogRates, UnusedReasonsFreeTheirPlaces) {
  constexpr int kMany = static_cast<int>(Logger::kMaxReasons) * 2;
  for (int i = 0; i < kMany; ++i) {
    refuse(1, std::to_string(i));
    clock_.advance_ms(1'000);
  }
  EXPECT_EQ(log_->left_out(), 0u);
}

TEST(LogDrops, AreReportedWhenTheReaderIsBack) {
  const fakes::ManualClock clock;
  Pipe pipe;
  const std::size_t filled = pipe.fill();
  std::uint64_t dropped = 0;
  {
    LineWriter writer(pipe.writer());
    Logger log(clock, writer, {});
    while (writer.dropped() < 5) log.log(LogLevel::info, "lost", {}, kEveryLine);
    dropped = log.dropped();
    EXPECT_EQ(pipe.read(filled).size(), filled);
    pipe.begin_reading();
    EXPECT_TRUE(writer.flush(std::chrono::minutes(1)));
    log.info("after");
  }
  const auto lines = pipe.lines();
  EXPECT_THAT(lines.back(), HasSubstr("level=warning msg=\"lines were dropped: nobody took them "
                                      "in time\" dropped=" +
                                      std::to_string(dropped)));
}

// A short line may fit where a long one and the notice did not.
TEST(LogDrops, AreReportedLaterIfTheNoticeHasNoRoom) {
  const fakes::ManualClock clock;
  Pipe pipe;
  const std::size_t filled = pipe.fill();
  std::uint64_t dropped = 0;
  {
    LineWriter writer(pipe.writer());
    Logger log(clock, writer, {});
    const std::string text(150, 'a');
    while (writer.dropped() < 5) {
      log.log(LogLevel::info, "long", {{"text", text}}, kEveryLine);
    }
    while (writer.dropped() < 10) log.log(LogLevel::info, "s", {}, kEveryLine);
    dropped = log.dropped();
    EXPECT_EQ(pipe.read(filled).size(), filled);
    pipe.begin_reading();
    EXPECT_TRUE(writer.flush(std::chrono::minutes(1)));
    log.info("after");
  }
  std::uint64_t reported = 0;
  for (const std::string& line : pipe.lines()) {
    const std::size_t at = line.find(" dropped=");
    if (at != std::string::npos)
      reported += std::stoull(line.substr(at + std::strlen(" dropped=")));
  }
  EXPECT_EQ(reported, dropped);
}

TEST(LogText, IsCutAtTheLimit) {
  const fakes::ManualClock clock;
  Pipe pipe;
  {
    Logger(clock, pipe.writer(), LogLevel::info)
        .info("long", {{"text", std::string(100'000, 'a')}});
  }
  const auto lines = pipe.lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].ends_with("aaa...\""));
  EXPECT_LT(lines[0].size(), 2 * kMaxLogTextBytes);
}

TEST(ProcessLog, ReportsThrowingWork) {
  const fakes::ManualClock clock;
  Pipe pipe;
  {
    Logger log(clock, pipe.writer(), LogLevel::info);
    const ProcessLog process_log(log);
    for (int i = 0; i < 10'000; ++i) report_thrown("a thread", "no memory");
  }
  const auto lines = pipe.lines();
  EXPECT_EQ(lines.size(), LogRate{}.burst + 1);
  EXPECT_THAT(lines.front(), HasSubstr("msg=\"work of a thread failed\" work=\"a thread\" "
                                       "why=\"no memory\""));
  EXPECT_THAT(lines.back(), HasSubstr("left_out=9900"));
}

TEST(LastWords, FollowTheQueuedLines) {
  // The child starts a thread, which ThreadSanitizer allows only in a separate program.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const fakes::ManualClock clock;
        LineWriter writer(STDERR_FILENO);
        Logger log(clock, writer, {});
        const ProcessLog process_log(log);
        for (int i = 0; i < 50; ++i) log.info("queued", {{"n", i}});
        invariant_broken("one", "is two");
      },
      "msg=queued n=49\n.*invariant broken at .*one");
}

// Runs in a separate process whose stderr is full. The process must end by itself.
TEST(LastWords, DoNotWaitForAReader) {
  EXPECT_EXIT(
      {
        Pipe pipe;
        pipe.fill();
        ::dup2(pipe.writer(), STDERR_FILENO);
        write_last_words("never read\n");
        ::_exit(7);
      },
      testing::ExitedWithCode(7), "");
}

TEST(StandardFiles, AreOpenedIfClosed) {
  EXPECT_EXIT(
      {
        for (int fd = 0; fd < 3; ++fd) ::close(fd);
        open_standard_files();
        const int next = ::open("/dev/null", O_RDONLY);
        struct stat null {};
        ::stat("/dev/null", &null);
        bool all_null = next > STDERR_FILENO;
        for (int fd = 0; fd < 3; ++fd) {
          struct stat opened {};
          all_null = all_null && ::fstat(fd, &opened) == 0 && opened.st_rdev == null.st_rdev;
        }
        ::_exit(all_null ? 7 : 8);
      },
      testing::ExitedWithCode(7), "");
}

TEST(StandardFiles, StayUnchangedIfOpen) {
  struct stat before {};
  ASSERT_EQ(::fstat(STDERR_FILENO, &before), 0);
  open_standard_files();
  struct stat after {};
  ASSERT_EQ(::fstat(STDERR_FILENO, &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
}

}  // namespace
}  // namespace cairn
