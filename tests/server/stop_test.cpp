#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string_view>
#include <thread>

#include "server/server.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn {
namespace {

// Once told so, holds the thread `tick` once, for as long as the rest of a stop takes.
class ClockThatHolds final : public Clock {
 public:
  TimePoint now() const override {
    if (is_ticker() && holds.exchange(false)) {
      held.store(true);
      held.notify_all();
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    return system_.now();
  }
  std::int64_t unix_ms() const override { return system_.unix_ms(); }

  mutable std::atomic<bool> holds{false};
  mutable std::atomic<bool> held{false};

 private:
  static bool is_ticker() {
    std::array<char, 16> name{};
    ::pthread_getname_np(::pthread_self(), name.data(), name.size());
    return std::string_view(name.data()) == "tick";
  }

  SystemClock system_;
};

// The ticker looks at the memory of HTTP, which must outlive it.
TEST(ServerStop, ALookAtThePoolsMayBeUnderWay) {
  const fakes::TempDir folder;
  ClockThatHolds clock;
  Logger log(clock, STDERR_FILENO, LogLevel::error);
  Settings settings;
  settings.listen.port = 0;
  settings.data_dir = folder.path().string();
  settings.runtime = RuntimeChoice::host;
  // Without a reaction nobody looks at them.
  settings.pool_pressure.reactions[0].kind = PressureReaction::Kind::callback;
  auto server = Server::start(settings, clock, log);
  ASSERT_TRUE(server) << server.error().detail;
  clock.holds.store(true);
  clock.held.wait(false);
  server->reset();
}

}  // namespace
}  // namespace cairn
