#pragma once

#include <memory>

#include "blockmgr/remote_tier/remote_context.hpp"

namespace cairn {

// Stores a block of the cache under its name. If the name already has a value, it keeps that value
// and restarts its TTL. A block that is gone by then is not an error.
struct RemoteUpload {
  std::shared_ptr<RemoteContext> context;
  BlockKey key;
  std::optional<BlockKey> parent = {};
  std::shared_ptr<BlockReader> reader = {};  // the block's bytes; null: read them from the cache
  // true: asks the store first, before sending the bytes. false: sends them at once, which saves a
  // round trip, a third of the time for small blocks.
  bool may_be_there = false;
  UniqueFunction<void(Result<>)> ended;
};
void start_upload(RemoteUpload upload);

}  // namespace cairn
