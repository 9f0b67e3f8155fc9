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
  UniqueFunction<void(Result<>)> ended;
};
void start_upload(SharedUpload upload);

}  // namespace cairn
