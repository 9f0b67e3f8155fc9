#include "memory/region_registry.hpp"

#include <gtest/gtest.h>

namespace cairn {
namespace {

constexpr RegionId kId{7};

TEST(RegionRegistry, FindsAnInsertedRegion) {
  const Region region = Region::system(4096).value();
  RegionRegistry registry;
  registry.insert(kId, region.view()).value();
  EXPECT_EQ(registry.get(kId).value().data(), region.data());
}

TEST(RegionRegistry, RefusesADuplicateIdAndKeepsTheFirst) {
  const Region first = Region::system(1).value();
  const Region second = Region::system(1).value();
  RegionRegistry registry;
  registry.insert(kId, first.view()).value();
  EXPECT_EQ(registry.insert(kId, second.view()).error().code, ErrorCode::state_conflict);
  EXPECT_EQ(registry.get(kId).value().data(), first.data());
}

TEST(RegionRegistry, DoesNotFindAnUnknownId) {
  RegionRegistry registry;
  EXPECT_EQ(registry.get(kId).error().code, ErrorCode::not_found);
  EXPECT_EQ(registry.remove(kId).error().code, ErrorCode::not_found);
}

TEST(RegionRegistry, ForgetsARemovedRegion) {
  const Region region = Region::system(1).value();
  RegionRegistry registry;
  registry.insert(kId, region.view()).value();
  registry.remove(kId).value();
  EXPECT_EQ(registry.get(kId).error().code, ErrorCode::not_found);
  EXPECT_TRUE(registry.insert(kId, region.view()).has_value());
}

}  // namespace
}  // namespace cairn
