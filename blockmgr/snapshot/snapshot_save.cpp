// Saves a cache to a snapshot's file.
#include <algorithm>
#include <deque>
#include <numeric>
#include <string>

#include "base/hex.hpp"
#include "base/pieces.hpp"
#include "blockmgr/cache/awaited.hpp"
#include "blockmgr/snapshot/snapshot_job.hpp"

namespace cairn {
namespace {

// Entries examined per hold of the lock.
constexpr EntryNumber kPlanStep = 1024;
// Pinned at a time: enough that a disk reads ahead while a block is written, and so little that
// allocations do not miss the slots.
constexpr std::uint64_t kWindowBytes = 8ull << 20;
constexpr std::uint64_t kMaxWindow = 16;

// The cache's blocks when the snapshot begins: about 100 bytes each.
struct Plan {
  struct Node {
    BlockKey key;
    EntryNumber parent = kNoEntry;
    UseStamp last_use = {};  // of the block or its descendants
    std::uint32_t children = 0;
  };
  std::vector<Node> nodes;
  std::vector<std::uint32_t> node_of;  // by entry
};
constexpr std::uint32_t kNoNode = ~std::uint32_t{0};

UseStamp last_use(const BlockStore& store, const Entry& entry) {
  UseStamp latest;
  for (Tier tier : kTiers) {
    const SlotNumber slot = entry.slots[index_of(tier)];
    if (slot != kNoSlot) latest = std::max(latest, store.pool(tier)[slot].last_use);
  }
  return latest;
}

Plan look_around(CacheCore& core) {
  Plan plan;
  EntryNumber next = 0;
  for (bool more = true; more;) {
    CacheLock locked(core, LockUse::upkeep);
    const BlockStore& store = locked->store;
    const EntryNumber end = store.entry_end();
    plan.node_of.resize(end, kNoNode);
    const EntryNumber step_end = std::min(end, next + kPlanStep);
    for (; next < step_end; ++next) {
      const Entry& entry = store.entry(next);
      if (!entry.present()) continue;
      plan.node_of[next] = static_cast<std::uint32_t>(plan.nodes.size());
      plan.nodes.push_back(
          {.key = store.key(next), .parent = entry.parent, .last_use = last_use(store, entry)});
    }
    more = next < end;
  }
  return plan;
}

// Parents first, the most recently used prefix first. A parent counts as used when its children
// were, so the second rule never contradicts the first.
std::vector<BlockKey> in_order(Plan plan) {
  auto& nodes = plan.nodes;
  const auto parent_of = [&](std::uint32_t node) {
    const EntryNumber parent = nodes[node].parent;
    return parent < plan.node_of.size() ? plan.node_of[parent] : kNoNode;
  };
  for (std::uint32_t node = 0; node < nodes.size(); ++node) {
    if (const std::uint32_t parent = parent_of(node); parent != kNoNode) ++nodes[parent].children;
  }
  // Children before parents. The cache changes meanwhile, so a block may seem to be its own
  // ancestor; it then has no order.
  std::vector<std::uint32_t> order;
  std::vector<bool> taken(nodes.size());
  order.reserve(nodes.size());
  const auto take = [&](std::uint32_t node) {
    order.push_back(node);
    taken[node] = true;
  };
  for (std::uint32_t node = 0; node < nodes.size(); ++node) {
    if (nodes[node].children == 0) take(node);
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::uint32_t parent = parent_of(order[i]);
    if (parent == kNoNode) continue;
    nodes[parent].last_use = std::max(nodes[parent].last_use, nodes[order[i]].last_use);
    if (--nodes[parent].children == 0) take(parent);
  }
  for (std::uint32_t node = 0; node < nodes.size(); ++node) {
    if (!taken[node]) take(node);
  }
  std::reverse(order.begin(), order.end());
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return nodes[a].last_use > nodes[b].last_use;
  });
  std::vector<BlockKey> keys;
  keys.reserve(order.size());
  for (std::uint32_t node : order) keys.push_back(nodes[node].key);
  return keys;
}

// nullopt if the key is gone.
std::optional<SnapshotRecord> describe(CacheCore& core, const BlockKey& key) {
  CacheLock locked(core, LockUse::upkeep);
  BlockStore& store = locked->store;
  const EntryNumber number = store.find(key, locked.now());
  if (number == kNoEntry) return std::nullopt;
  const Entry& entry = store.entry(number);
  SnapshotRecord record{.key = key};
  record.parent = store.key_before(number);
  record.metadata = store.metadata(number);
  record.epoch = store.epoch(number);
  record.last_use_unix_ms = last_use(store, entry).unix_ms();
  if (entry.has_ttl) {
    record.expires_at_unix_ms =
        std::max<std::int64_t>(1, locked.unix_ms_at(store.expires_at(number)));
  }
  for (Tier tier : kTiers) {
    const SlotNumber slot = entry.slots[index_of(tier)];
    if (slot == kNoSlot) continue;
    if (record.tiers == 0) record.priority = store.pool(tier)[slot].priority;
    record.tiers = static_cast<std::uint8_t>(record.tiers | 1U << index_of(tier));
  }
  return record;
}

// A block that is being written to the file.
struct Fetched {
  SnapshotRecord record;
  BlockReader reader;
  Awaited<std::span<const iovec>> bytes = {};
};

std::uint64_t window_blocks(const CacheCore& core) {
  // Never pins the whole of a small cache.
  std::uint64_t smallest = kMaxWindow * 8;
  for (const auto& tier : core.config.tiers) {
    if (tier) smallest = std::min<std::uint64_t>(smallest, tier->num_blocks);
  }
  return std::clamp<std::uint64_t>(std::min(kWindowBytes / core.block_bytes, smallest / 8), 1,
                                   kMaxWindow);
}

}  // namespace

Result<> save_blocks(CacheCore& core, Cache& cache, SnapshotWriter& writer,
                     SnapshotProgress& progress) {
  const std::vector<BlockKey> keys = in_order(look_around(core));
  std::uint64_t total = keys.size();
  progress.set_total(total);
  const std::uint64_t most = window_blocks(core);
  std::deque<Fetched> window;
  auto next = keys.begin();
  while (next != keys.end() || !window.empty()) {
    CAIRN_TRY(progress.check_wanted());
    if (next != keys.end() && window.size() < most) {
      const BlockKey& key = *next++;
      auto record = describe(core, key);
      auto reader = cache.peek(key);
      if (record && reader) {
        window.push_back({.record = std::move(*record), .reader = std::move(*reader)});
        window.back().reader.fetch(window.back().bytes.done());
        continue;
      }
      if (!reader && reader.error().code != ErrorCode::unknown_key) {
        return std::move(reader).error();
      }
      progress.set_total(--total);  // gone before its turn
      continue;
    }
    Fetched& first = window.front();
    const auto bytes = first.bytes.wait();
    if (!bytes) {
      progress.add(TransferStatus::Failure{first.record.key, bytes.error()});
      return Error{bytes.error().code, "key " + to_hex(first.record.key.view().bytes()) +
                                           " cannot be read: " + bytes.error().detail};
    }
    CAIRN_TRY(writer.add(std::move(first.record), *bytes));
    progress.add(TransferTable::Arrived{.blocks = 1, .bytes = total_bytes(*bytes)});
    window.pop_front();
  }
  return progress.check_wanted();  // a job cancelled during the last block is not done
}

}  // namespace cairn
