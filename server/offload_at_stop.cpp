#include "server/offload_at_stop.hpp"

#include <algorithm>
#include <future>
#include <memory>

namespace cairn {
namespace {

// Blocks per transfer. The first transfer that finds no room ends the copying.
constexpr std::uint32_t kBlocksAtATime = 1024;

// Returns how many blocks arrived; nullopt if the transfer did not start.
std::optional<std::uint64_t> bring(BlockManager& manager, Cache& cache,
                                   std::vector<BlockKey> keys) {
  auto transfer = cache.transfer({.keys = std::move(keys), .to = Tier::disk});
  if (!transfer) return std::nullopt;
  auto ended = std::make_shared<std::promise<std::uint64_t>>();
  auto done = ended->get_future();
  const auto watched = manager.watch_transfer(
      *transfer, [ended](const TransferStatus& status) { ended->set_value(status.blocks_done); });
  if (!watched) return std::nullopt;
  return done.get();
}

// Returns how many blocks of `from` arrived. Blocks without room are left out.
std::uint64_t bring_all(BlockManager& manager, Cache& cache, Tier from) {
  // A transfer of more blocks than the disk tier has would be refused.
  const auto limit = static_cast<std::uint32_t>(std::min<std::uint64_t>(
      kBlocksAtATime, cache.config().tiers[index_of(Tier::disk)]->num_blocks));
  std::uint64_t blocks = 0;
  std::uint64_t cursor = 0;
  do {
    auto page = cache.list({.tier = from, .limit = limit, .cursor = cursor});
    if (!page) break;
    std::vector<BlockKey> keys;
    for (const BlockInfo& block : page->blocks) {
      if (block.key) keys.push_back(*block.key);
    }
    if (!keys.empty()) {
      const auto arrived = bring(manager, cache, std::move(keys));
      if (!arrived) break;
      blocks += *arrived;
    }
    cursor = page->next_cursor;
  } while (cursor != 0);
  return blocks;
}

}  // namespace

void bring_memory_to_disk(BlockManager& manager, Logger& log) {
  for (const auto& cache : manager.caches()) {
    if (cache->layout(Tier::disk) == nullptr) continue;
    // The device's blocks last: if the disk tier is full, they evict others and nothing evicts
    // them.
    for (const Tier from : {Tier::pinned, Tier::device}) {
      if (cache->layout(from) == nullptr) continue;
      const std::uint64_t blocks = bring_all(manager, *cache, from);
      log.info("brought to disk",
               {{"cache", cache->config().name}, {"tier", to_string(from)}, {"blocks", blocks}});
    }
  }
}

}  // namespace cairn
