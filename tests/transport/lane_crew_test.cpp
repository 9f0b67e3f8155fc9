#include "transport/lane_crew.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace cairn {
namespace {

TEST(LaneCrew, RunsEveryPartOnceForSeveralCallersAtATime) {
  const auto runtime = std::move(*make_host_runtime({}));
  for (std::uint32_t helpers : {0u, 1u, 3u}) {
    SCOPED_TRACE(helpers);
    LaneCrew crew(*runtime, nullptr, helpers);
    const auto call = [&] {
      Lane lane(*runtime);
      for (std::size_t count : {0u, 1u, 2u, 100u}) {
        std::vector<std::atomic<int>> runs(count);
        crew.for_each(count, lane, [&](std::size_t index, Lane&) { ++runs[index]; });
        for (const auto& times : runs) EXPECT_EQ(times, 1);
      }
    };
    std::thread one(call);
    std::thread two(call);
    call();
    one.join();
    two.join();
  }
}

TEST(LaneCrew, HelpersRunPartsWhileTheCallerIsInOne) {
  const auto runtime = std::move(*make_host_runtime({}));
  LaneCrew crew(*runtime, nullptr, 1);
  Lane lane(*runtime);
  // Each part waits for the other to begin: one thread alone would never get through.
  std::atomic<int> begun{0};
  crew.for_each(2, lane, [&](std::size_t, Lane&) {
    ++begun;
    while (begun < 2) std::this_thread::yield();
  });
  EXPECT_EQ(begun, 2);
}

}  // namespace
}  // namespace cairn
