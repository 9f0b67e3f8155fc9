#pragma once

#include <memory>
#include <vector>

#include "blockmgr/shared/shared_context.hpp"

namespace cairn {

// Reads blocks from servers that have them: what one of them has is asked for with one request, and
// what it does not give, of the next one, three at most.
struct SourceRead {
  struct Block {
    BlockKey key;
    const BlockSources* sources = nullptr;  // until the end
    std::vector<iovec> into;                // bytes and header; all have as many
  };
  std::shared_ptr<SharedContext> context;
  std::vector<Block> blocks = {};
  // Of one of the blocks, by its number; on the thread that reads from servers, or this one.
  // Whether what has come is it. wrong_length: something else came in its place.
  UniqueFunction<Result<>(std::size_t block, const Result<bool>& there)> look = {};
  // A server said so of itself, or gave something else.
  UniqueFunction<void(std::size_t block, const BlockSource& source)> is_not_there = {};
  // Once each: it is there, or why it did not come.
  UniqueFunction<void(std::size_t block, const Result<>& result)> ended = {};
};
void start_source_read(SourceRead read);

// unknown_key: what is told of a block that was said to be there.
Error absent_from_tier(const BlockKey& key);

}  // namespace cairn
