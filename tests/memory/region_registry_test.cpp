#include "memory/region_registry.hpp"

#include <gtest/gtest.h>

namespace cairn {
namespace {

constexpr RegionId kId{7};

TEST(RegionRegistry, FindsWhatWasInserted) {
  const Region region = Region::system(4096).value();
  RegionRegistry registry;
  registry.insert(kId, region.view()).value();
  EXPECT_EQ(registry.get(kId).value().data(), region.data());
}

TEST(RegionRegistry, RefusesAnIdTwiceAndKeepsTheFirst) {
  const Region first = Region::system(1).value();
  const Region second = Region::system(1).value();
  RegionRegistry registry;
  registry.insert(kId, first.view()).value();
  EXPECT_EQ(registry.insert(kId, second.view()).error().code, ErrorCode::state_conflict);
  EXPECT_EQ(registry.get(kId).value().data(), first.data());
}

TEST(RegionRegistry, DoesNotFindWhatIsNotThere) {
  RegionRegistry registry;
  EXPECT_EQ(registry.get(kId).error().code, ErrorCode::not_found);
  EXPECT_EQ(registry.remove(kId).error().code, ErrorCode::not_found);
}

TEST(RegionRegistry, ForgetsWhatWasRemoved) {
  const Region region = Region::system(1).value();
  RegionRegistry registry;
  registry.insert(kId, region.view()).value();
  registry.remove(kId).value();
  EXPECT_EQ(registry.get(kId).error().code, ErrorCode::not_found);
  EXPECT_TRUE(registry.insert(kId, region.view()).has_value());
}

}  // namespace
}  // namespace cairn
