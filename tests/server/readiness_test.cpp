#include "server/routes/readiness.hpp"

#include <gtest/gtest.h>

#include "memory/host/host_runtime.hpp"
#include "tests/fakes/faulty_runtime.hpp"

namespace cairn {
namespace {

class ReadinessTest : public testing::Test {
 protected:
  std::string why_not(Phase phase) {
    const auto ready = check_ready(phase, runtime_, unmade_);
    if (ready) return "";
    EXPECT_EQ(ready.error().code, ErrorCode::unavailable);
    return ready.error().detail;
  }
  fakes::FaultyRuntime runtime_{make_host_runtime({}).value()};
  UnmadeCaches unmade_;
};

TEST_F(ReadinessTest, IsReadyWhileServing) { EXPECT_EQ(why_not(Phase::serving), ""); }

TEST_F(ReadinessTest, IsNotReadyBeforeOrAfterServing) {
  EXPECT_EQ(why_not(Phase::starting), "the server is starting");
  EXPECT_EQ(why_not(Phase::leaving), "the server is draining");
  EXPECT_EQ(why_not(Phase::draining), "the server is draining");
}

TEST_F(ReadinessTest, IsNotReadyWithALostDevice) {
  runtime_.lose("device 0 is lost: it fell off the bus");
  EXPECT_EQ(why_not(Phase::serving), "device 0 is lost: it fell off the bus");
}

TEST_F(ReadinessTest, IsNotReadyUntilEveryCacheIsMade) {
  unmade_.add({.name = "b", .why = {ErrorCode::no_capacity, "/private/path is full"}});
  unmade_.add({.name = "a", .why = {ErrorCode::unavailable, "not mounted"}});
  const std::string why = why_not(Phase::serving);
  EXPECT_NE(why.find("a (unavailable), b (no_capacity)"), std::string::npos) << why;
  EXPECT_EQ(why.find("/private"), std::string::npos) << "the request needs no token";
  EXPECT_TRUE(unmade_.remove("a"));
  EXPECT_NE(why_not(Phase::serving), "");
  EXPECT_TRUE(unmade_.remove("b"));
  EXPECT_FALSE(unmade_.remove("b"));
  EXPECT_EQ(why_not(Phase::serving), "");
}

// An engine may check readiness before it brings its memory.
TEST_F(ReadinessTest, DoesNotWaitForAnEngine) {
  unmade_.add({.name = "a", .why = {ErrorCode::not_found, "no memory"}, .awaits_engine = true});
  EXPECT_EQ(why_not(Phase::serving), "");
}

}  // namespace
}  // namespace cairn
