#include "tests/blockmgr/rig.hpp"

#include <unistd.h>

#include <algorithm>

#include "memory/host/host_runtime.hpp"

namespace cairn::testing {

BlockKey key(std::uint64_t number, std::size_t length) {
  std::vector<std::byte> bytes(length, std::byte{0xA5});
  for (std::size_t i = 0; i < 8 && i < length; ++i) {
    bytes[i] = static_cast<std::byte>(number >> (8 * (7 - i)));
  }
  return BlockKey(bytes);
}

std::vector<BlockKey> keys(std::uint64_t first, std::size_t count) {
  std::vector<BlockKey> list;
  for (std::size_t i = 0; i < count; ++i) list.push_back(key(first + i));
  return list;
}

std::vector<KeyView> views(const std::vector<BlockKey>& list) { return {list.begin(), list.end()}; }

LayoutConfig small_shape() {
  return {.num_layers = 2, .outer_dim = 2, .page_size = 2, .inner_dim = 4, .dtype_width_bytes = 2};
}

CacheConfig small_cache(TierSizes sizes, OffloadMode offload) {
  CacheConfig config;
  config.name = "test";
  config.shape = small_shape();
  config.offload = offload;
  config.eviction = EvictionKind::lru;  // so that a test knows which block goes first
  const auto add = [&](Tier tier, std::uint32_t blocks) {
    if (blocks > 0) config.tiers[index_of(tier)] = TierConfig{.num_blocks = blocks};
  };
  add(Tier::device, sizes.device);
  add(Tier::pinned, sizes.pinned);
  add(Tier::disk, sizes.disk);
  return config;
}

Rig::Rig(Parts parts) {
  runtime = parts.runtime ? std::move(parts.runtime) : std::move(make_host_runtime({}).value());
  disk = make_positional_disk_io();
  if (parts.disk) disk = parts.disk(std::move(disk));
  log = std::make_unique<Logger>(clock, STDERR_FILENO, LogLevel::error);
  scheduler = std::make_unique<TransferScheduler>(
      *runtime, *disk, clock,
      TransferSchedulerOptions{.workers = parts.workers,
                               .max_queued_jobs = parts.max_queued_jobs,
                               .disk_parts = parts.workers == 1 ? 1u : 64u,
                               .copy_forms = parts.copy_forms});
  parts.options.data_dir = dir.path();
  manager = std::make_unique<BlockManager>(*runtime, *scheduler, clock, *log, parts.options);
}

std::shared_ptr<Cache> Rig::cache(const CacheConfig& config) {
  auto created = manager->create_cache(config);
  if (!created) throw std::runtime_error(created.error().detail);
  return created->cache;
}

Result<Allocation> Rig::allocate(Cache& cache, const AllocateRequest& request) {
  return await<Allocation>([&](auto done) { cache.allocate(request, std::move(done)); });
}

Result<> Rig::write(Cache& cache, const Cache::WriteTarget& target, const Bytes& bytes) {
  auto writer = cache.write(target);
  if (!writer) return std::move(writer).error();
  auto room = await<std::span<const iovec>>([&](auto done) { writer->room(std::move(done)); });
  if (!room) return std::move(room).error();
  std::size_t at = 0;
  for (const iovec& piece : *room) {
    std::memcpy(piece.iov_base, bytes.data() + at, piece.iov_len);
    at += piece.iov_len;
  }
  if (at != bytes.size() || at != writer->size_bytes()) {
    return Error{ErrorCode::internal, "the room has another size"};
  }
  return await<void>([&](auto done) { writer->finish(std::move(done)); });
}

Result<std::vector<CommitStatus>> Rig::commit(Cache& cache, const LeaseId& lease,
                                              std::vector<CommitBlock> blocks) {
  return await<std::vector<CommitStatus>>(
      [&](auto done) { cache.commit(lease, std::move(blocks), std::move(done)); });
}

Result<EvictResult> Rig::evict(Cache& cache, std::vector<BlockKey> list, std::optional<Tier> tier) {
  return await<EvictResult>(
      [&](auto done) { cache.evict(std::move(list), tier, std::move(done)); });
}

Result<Bytes> Rig::read(Cache& cache, const BlockKey& name, BlockPart part) {
  auto reader = cache.read(name, part);
  if (!reader) return std::move(reader).error();
  auto pieces = await<std::span<const iovec>>([&](auto done) { reader->fetch(std::move(done)); });
  if (!pieces) return std::move(pieces).error();
  Bytes bytes;
  for (const iovec& piece : *pieces) {
    const auto* data = static_cast<const std::byte*>(piece.iov_base);
    bytes.insert(bytes.end(), data, data + piece.iov_len);
  }
  if (bytes.size() != reader->size_bytes()) {
    return Error{ErrorCode::internal, "the pieces have another size"};
  }
  return bytes;
}

TransferStatus Rig::transfer(Cache& cache, TransferRequest request) {
  auto id = cache.transfer(std::move(request));
  if (!id) throw std::runtime_error(id.error().detail);
  scheduler->wait_idle();
  return manager->transfer(*id).value();
}

Result<> Rig::put(Cache& cache, const Put& what) {
  auto allocation = allocate(cache, {.count = static_cast<std::uint32_t>(what.keys.size()),
                                     .tier = what.tier,
                                     .priority = what.priority,
                                     .holder = what.holder});
  if (!allocation) return std::move(allocation).error();
  std::vector<CommitBlock> blocks;
  std::optional<BlockKey> parent = what.parent;
  for (std::size_t i = 0; i < what.keys.size(); ++i) {
    const BlockHandle handle = allocation->blocks[i];
    CAIRN_TRY(
        write(cache, {.lease = allocation->lease, .block = handle},
              (what.bytes != nullptr ? what.bytes : bytes_of)(what.keys[i], cache.block_bytes())));
    blocks.push_back(
        {.handle = handle, .key = what.keys[i], .parent = parent, .ttl_ms = what.ttl_ms});
    parent = what.keys[i];
  }
  if (auto done = commit(cache, allocation->lease, std::move(blocks)); !done) {
    return std::move(done).error();
  }
  if (auto released = cache.release(allocation->lease, {}); !released) {
    return std::move(released).error();
  }
  scheduler->wait_idle();
  return {};
}

MatchResult Rig::match(Cache& cache, const std::vector<BlockKey>& list,
                       std::optional<std::uint32_t> lease_ms) {
  MatchResult result;
  if (auto matched = cache.match(views(list), lease_ms, result); !matched) {
    throw std::runtime_error(matched.error().detail);
  }
  return result;
}

Bytes bytes_of(const BlockKey& name, std::uint64_t size) {
  Bytes bytes(size);
  std::uint64_t state = 0x9E3779B97F4A7C15u;
  for (std::byte b : name.view().bytes()) {
    state = (state ^ static_cast<std::uint64_t>(b)) * 0x100000001B3u;
  }
  for (std::byte& b : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    b = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

std::vector<BlockKey> present_in(const Cache& cache, Tier tier) {
  std::vector<BlockKey> found;
  const auto list = cache.list({.tier = tier, .limit = 1'000'000}).value();
  for (const BlockInfo& block : list.blocks) {
    if (block.key) found.push_back(*block.key);
  }
  return found;
}

bool is_in(const Cache& cache, Tier tier, const BlockKey& name) {
  const auto found = present_in(cache, tier);
  return std::find(found.begin(), found.end(), name) != found.end();
}

std::uint64_t count(const Cache& cache, Tier tier, SlotState state) {
  return cache.stats().tiers[index_of(tier)].blocks[static_cast<std::size_t>(state)];
}

}  // namespace cairn::testing
