#pragma once

#include <memory>
#include <vector>

#include "blockmgr/remote_tier/remote_context.hpp"

namespace cairn {

// Reads blocks from servers that have them, several blocks per request. For a block that a server
// does not deliver, it asks the next one, up to three.
struct SourceRead {
  struct Block {
    BlockKey key;
    const BlockSources* sources = nullptr;  // must stay valid until the block's end
    std::vector<iovec> into;                // bytes and header; the same size for all blocks
  };
  std::shared_ptr<RemoteContext> context;
  std::vector<Block> blocks = {};
  // Checks the bytes that arrived for a block. `there` is wrong_length if the server sent something
  // else. Runs on the thread that reads from servers, or inside start_source_read().
  UniqueFunction<Result<>(std::size_t block, const Result<bool>& there)> look = {};
  // The server says that it lacks the block, or sent a wrong one.
  UniqueFunction<void(std::size_t block, const BlockSource& source)> is_not_there = {};
  // Runs once per block: it is read, or the error.
  UniqueFunction<void(std::size_t block, const Result<>& result)> ended = {};
};
void start_source_read(SourceRead read);

// unknown_key, for a block that was said to be stored.
Error absent_from_tier(const BlockKey& key);

}  // namespace cairn
