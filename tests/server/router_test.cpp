#include "server/routing/router.hpp"

#include <gtest/gtest.h>

namespace cairn {
namespace {

using http::Method;

constexpr RoutePattern kPatterns[] = {
    {Method::get, "/"},
    {Method::get, "/v1/caches"},
    {Method::get, "/v1/caches/{cache}"},
    {Method::put, "/v1/caches/{cache}"},
    {Method::post, "/v1/caches/{cache}/match"},
    {Method::get, "/v1/caches/{cache}/keys/{key}"},
    {Method::head, "/v1/caches/{cache}/keys/{key}"},
    {Method::put, "/v1/caches/{cache}/slots/{tier}/{slot}/data"},
};

class RouterTest : public ::testing::Test {
 protected:
  // The pattern found, or -1.
  int found(Method method, std::string_view path) const {
    const auto match = router_.find(method, path);
    return match ? static_cast<int>(match->route) : -1;
  }
  Router router_{kPatterns};
};

TEST_F(RouterTest, FindsByMethodAndPath) {
  EXPECT_EQ(found(Method::get, "/"), 0);
  EXPECT_EQ(found(Method::get, "/v1/caches"), 1);
  EXPECT_EQ(found(Method::get, "/v1/caches/x"), 2);
  EXPECT_EQ(found(Method::put, "/v1/caches/x"), 3);
  EXPECT_EQ(found(Method::post, "/v1/caches/match/match"), 4);
}

TEST_F(RouterTest, FindsNothingElse) {
  for (const char* path :
       {"", "v1/caches", "/v1", "/v1/caches/", "//", "/v1//caches", "/v1/caches/x/",
        "/v1/caches//match", "/v1/caches/x/match/y", "/a/b/c/d/e/f/g/h/i/j/k", "/V1/caches"}) {
    SCOPED_TRACE(path);
    EXPECT_EQ(found(Method::get, path), -1);
    EXPECT_EQ(found(Method::post, path), -1);
  }
}

TEST_F(RouterTest, GivesParametersInOrder) {
  const auto match = router_.find(Method::put, "/v1/caches/c.1/slots/device/17/data");
  ASSERT_TRUE(match);
  EXPECT_EQ(match->parameters[0], "c.1");
  EXPECT_EQ(match->parameters[1], "device");
  EXPECT_EQ(match->parameters[2], "17");
}

TEST_F(RouterTest, DecodesParametersAndSurvivesAMove) {
  auto match = router_.find(Method::put, "/v1/caches/a%2Fb/slots/%64evice/1%37/data");
  ASSERT_TRUE(match);
  const auto moved = std::move(*match);
  EXPECT_EQ(moved.parameters[0], "a/b");
  EXPECT_EQ(moved.parameters[1], "device");
  EXPECT_EQ(moved.parameters[2], "17");
}

TEST_F(RouterTest, HeadUsesGetUnlessItHasItsOwnRoute) {
  EXPECT_EQ(found(Method::head, "/v1/caches"), 1);
  EXPECT_EQ(found(Method::head, "/v1/caches/x/keys/aa"), 6);
}

TEST_F(RouterTest, ExplainsAWrongMethod) {
  const auto miss = router_.explain("/v1/caches/x");
  EXPECT_TRUE(miss.known_path);
  EXPECT_EQ(miss.allow, "GET, PUT, HEAD");
  EXPECT_FALSE(router_.explain("/v1/nothing").known_path);
}

TEST_F(RouterTest, ExplainsABrokenEncoding) {
  EXPECT_EQ(found(Method::get, "/v1/caches/%zz"), -1);
  EXPECT_TRUE(router_.explain("/v1/caches/%zz").malformed);
}

TEST_F(RouterTest, ListsEachPathOnceAndReturnsItsIndex) {
  EXPECT_EQ(router_.paths().size(), 6u);
  EXPECT_EQ(router_.paths()[router_.find(Method::get, "/v1/caches/x")->path], "/v1/caches/{cache}");
  EXPECT_EQ(router_.paths()[router_.find(Method::put, "/v1/caches/x")->path], "/v1/caches/{cache}");
  EXPECT_EQ(router_.paths()[router_.find(Method::post, "/v1/caches/x/match")->path],
            "/v1/caches/{cache}/match");
}

}  // namespace
}  // namespace cairn
