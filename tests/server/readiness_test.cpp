#include "server/routes/readiness.hpp"

#include <gtest/gtest.h>

#include "tests/fakes/faulty_runtime.hpp"

namespace cairn {
namespace {

class ReadinessTest : public testing::Test {
 protected:
  std::string why_not(Phase phase) {
    const auto ready = check_ready(phase, runtime_);
    if (ready) return "";
    EXPECT_EQ(ready.error().code, ErrorCode::unavailable);
    return ready.error().detail;
  }
  fakes::FaultyRuntime runtime_{make_host_runtime({}).value()};
};

TEST_F(ReadinessTest, IsThereWhileItServes) { EXPECT_EQ(why_not(Phase::serving), ""); }

TEST_F(ReadinessTest, IsNotThereBeforeAndAfter) {
  EXPECT_EQ(why_not(Phase::starting), "the server is starting");
  EXPECT_EQ(why_not(Phase::leaving), "the server is draining");
  EXPECT_EQ(why_not(Phase::draining), "the server is draining");
}

TEST_F(ReadinessTest, EndsWithALostDevice) {
  runtime_.lose("device 0 is lost: it fell off the bus");
  EXPECT_EQ(why_not(Phase::serving), "device 0 is lost: it fell off the bus");
}

}  // namespace
}  // namespace cairn
