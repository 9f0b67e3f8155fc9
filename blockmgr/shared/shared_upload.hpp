#pragma once

#include <memory>

#include "blockmgr/shared/shared_context.hpp"

namespace cairn {

// Stores a block of the cache under its name, unless the name has a value already, whose time to
// live then begins anew. A block that has gone meanwhile is none of anybody's errors.
struct SharedUpload {
  std::shared_ptr<SharedContext> context;
  BlockKey key;
  std::optional<BlockKey> parent = {};
  std::shared_ptr<BlockReader> reader = {};  // its bytes; null: the cache's, as long as it has them
  // The store is asked before the bytes go there; else it takes or refuses them, which is one round
  // trip, and of small blocks a third of the time, less.
  bool may_be_there = false;
  UniqueFunction<void(Result<>)> ended;
};
void start_upload(SharedUpload upload);

}  // namespace cairn
