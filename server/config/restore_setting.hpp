#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/log.hpp"
#include "base/result.hpp"
#include "blockmgr/block_manager.hpp"

namespace cairn {

// A snapshot to restore at start: `CACHE=NAME` in the data directory, or `CACHE=FILE` or `FILE`
// elsewhere. Text with a slash is a file.
struct RestoreSetting {
  std::string cache;  // empty: the cache that the snapshot was made of
  std::string name;   // or `file`
  std::filesystem::path file;
};
Result<RestoreSetting> parse_restore(std::string_view text);

// Blocks until done. Creates a missing cache from the snapshot's configuration. If there is too
// little room, it leaves out whole prefixes. Logs the number of restored blocks.
Result<> restore_at_start(BlockManager& manager, const RestoreSetting& setting, Logger& log);

}  // namespace cairn
