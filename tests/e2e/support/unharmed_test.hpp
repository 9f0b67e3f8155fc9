#pragma once

#include "tests/e2e/support/served_test.hpp"

namespace cairn::e2e {

// A suite whose requests must change nothing: blocks 1, 2 and 3 are stored, one on each tier.
class UnharmedTest : public ServedTest {
 protected:
  void TearDown() override {
    expect_unharmed();
    ServedTest::TearDown();
  }

  // Every slot, pin and lease is as it was when the test began or last called keep(), and the
  // stored blocks are intact.
  void expect_unharmed() {
    EXPECT_TRUE(eventually([this] { return cache_.counts() == before_; }))
        << testing::PrintToString(cache_.counts()) << "\nwas " << testing::PrintToString(before_);
    for (int n = 1; n <= 3; ++n) cache_.expect_intact(n);
  }
  // Accepts what the test has changed so far.
  void keep() { before_ = cache_.counts(); }

  TestCache cache_{rest_, {.device = 4, .pinned = 4, .disk = 4}};

 private:
  TestCache::Counts stored() {
    for (int n = 1; n <= 3; ++n) cache_.store(n, std::string("?tier=") + kTierNames[n - 1]);
    // A pin may outlast the response by a moment.
    EXPECT_TRUE(eventually([this] { return cache_.count("disk", "committed") == 0; }));
    return cache_.counts();
  }

 protected:
  TestCache::Counts before_ = stored();
};

}  // namespace cairn::e2e
