#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "tests/blockmgr/rig.hpp"

namespace cairn::testing {

// Only the test makes checkpoints.
inline BlockManagerOptions by_hand() {
  BlockManagerOptions options;
  options.disk.checkpoint_period_ms = 0;
  return options;
}

class DiskRestart : public ::testing::Test {
 protected:
  explicit DiskRestart(const CacheConfig& config = small_cache({.pinned = 4, .disk = 16}))
      : config_(config), rig_({.options = by_hand()}), cache_(rig_.cache(config_)) {}

  // Kills the server. Returns the copy of its disk folder, which restart() uses.
  std::filesystem::path crash() {
    rig_.scheduler->wait_idle();
    copy_ = std::make_unique<fakes::TempDir>();
    std::filesystem::copy(rig_.dir.path(), copy_->path(),
                          std::filesystem::copy_options::recursive |
                              std::filesystem::copy_options::overwrite_existing);
    return copy_->path() / "disk";
  }
  void restart() {
    after_.reset();
    BlockManagerOptions options = by_hand();
    options.data_dir = copy_->path();
    after_ = std::make_unique<BlockManager>(*rig_.runtime, *rig_.scheduler, rig_.clock, *rig_.log,
                                            options);
    back_ = after_->create_cache(config_).value().cache;
  }
  void crash_and_restart() {
    crash();
    restart();
  }
  void put(const std::vector<BlockKey>& list, std::optional<std::uint64_t> ttl_ms = {}) {
    const auto done = rig_.put(*cache_, {.keys = list, .tier = Tier::disk, .ttl_ms = ttl_ms});
    ASSERT_TRUE(done) << done.error().detail;
  }
  void expect_whole(const std::vector<BlockKey>& list) {
    for (const BlockKey& each : list) {
      const auto bytes = rig_.read(*back_, each);
      ASSERT_TRUE(bytes) << bytes.error().detail;
      EXPECT_EQ(*bytes, bytes_of(each));
    }
  }
  std::vector<BlockKey> there() { return present_in(*back_, Tier::disk); }

  CacheConfig config_;
  Rig rig_;
  std::shared_ptr<Cache> cache_;
  std::unique_ptr<fakes::TempDir> copy_;
  std::unique_ptr<BlockManager> after_;
  std::shared_ptr<Cache> back_;
};

}  // namespace cairn::testing
