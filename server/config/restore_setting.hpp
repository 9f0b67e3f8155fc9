#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/log.hpp"
#include "base/result.hpp"
#include "blockmgr/block_manager.hpp"

namespace cairn {

// A snapshot to bring back at start: `CACHE=NAME` of the data directory, `CACHE=FILE` or `FILE`
// from elsewhere. What has a slash is a file.
struct RestoreSetting {
  std::string cache;  // empty: the one that the snapshot was made of
  std::string name;   // or
  std::filesystem::path file;
};
Result<RestoreSetting> parse_restore(std::string_view text);

// Waits until it is done. A cache that is not there is made as the snapshot tells; of what does not
// fit, whole prefixes are left out, and that is logged.
Result<> restore_at_start(BlockManager& manager, const RestoreSetting& setting, Logger& log);

}  // namespace cairn
