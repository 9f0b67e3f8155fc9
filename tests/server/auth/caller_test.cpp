#include "server/auth/caller.hpp"

#include <gtest/gtest.h>

#include "tests/fakes/manual_clock.hpp"

namespace cairn {
namespace {

TEST(Caller, RoleIncludesLesserRoles) {
  const Caller writer({.name = "w", .role = Role::write});
  EXPECT_TRUE(writer.may(Role::none));
  EXPECT_TRUE(writer.may(Role::read));
  EXPECT_TRUE(writer.may(Role::write));
  EXPECT_FALSE(writer.may(Role::admin));
}

TEST(Caller, NarrowRoleAllowsNothingElse) {
  for (const Role narrow : {Role::metrics, Role::peer}) {
    const Caller caller({.name = "n", .role = narrow});
    for (const Role asked :
         {Role::none, Role::metrics, Role::peer, Role::read, Role::write, Role::admin}) {
      EXPECT_EQ(caller.may(asked), asked == Role::none || asked == narrow) << to_string(asked);
    }
  }
  const Caller reader({.name = "r", .role = Role::read});
  EXPECT_TRUE(reader.may(Role::metrics));
  EXPECT_TRUE(reader.may(Role::peer));
}

TEST(Caller, TouchesOnlyItsCachesIfConfined) {
  const Caller confined({.name = "c", .role = Role::read, .caches = {"a", "b"}});
  EXPECT_TRUE(confined.is_confined());
  EXPECT_TRUE(confined.may_touch("a"));
  EXPECT_TRUE(confined.may_touch("b"));
  for (const char* other : {"", "A", "aa", "c"}) EXPECT_FALSE(confined.may_touch(other)) << other;
  const Caller free({.name = "f", .role = Role::read});
  EXPECT_FALSE(free.is_confined());
  EXPECT_TRUE(free.may_touch("anything"));
}

// Within any period at most one second's requests and the rate go through.
TEST(Caller, AllowsItsRateAndABurstOfOneSecond) {
  fakes::ManualClock clock;
  const Caller caller({.name = "c", .role = Role::read, .requests_per_s = 10});
  int taken = 0;
  for (int i = 0; i < 100; ++i) taken += caller.take_request(clock.now());
  EXPECT_EQ(taken, 10);
  clock.advance_ms(99);
  EXPECT_FALSE(caller.take_request(clock.now()));
  clock.advance_ms(1);
  EXPECT_TRUE(caller.take_request(clock.now()));
  EXPECT_FALSE(caller.take_request(clock.now()));
  clock.advance_ms(3'600'000);
  taken = 0;
  for (int i = 0; i < 100; ++i) taken += caller.take_request(clock.now());
  EXPECT_EQ(taken, 10) << "unused requests do not accumulate";
}

TEST(Caller, TakesEveryRequestWithoutARate) {
  const Caller caller({.name = "c", .role = Role::read});
  for (int i = 0; i < 100'000; ++i) ASSERT_TRUE(caller.take_request({}));
}

}  // namespace
}  // namespace cairn
