// Loads a snapshot's file into a cache.
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "blockmgr/cache/awaited.hpp"
#include "blockmgr/cache/ingest.hpp"
#include "blockmgr/index/config_check.hpp"
#include "blockmgr/snapshot/replacement.hpp"
#include "blockmgr/snapshot/snapshot_job.hpp"

namespace cairn {
namespace {

// Filled and committed together.
constexpr std::uint64_t kBatchBytes = 8ull << 20;
constexpr std::uint64_t kMaxBatch = 64;
constexpr auto kLeaseAfter = std::chrono::milliseconds(10);

std::string words(const LayoutConfig& shape) {
  return std::to_string(shape.num_layers) + " layers x " + std::to_string(shape.outer_dim) + " x " +
         std::to_string(shape.page_size) + " tokens x " + std::to_string(shape.inner_dim) +
         " values of " + std::to_string(shape.dtype_width_bytes) + " bytes";
}

std::string words(const CacheConfig& config) {
  if (config.kv_groups.empty()) return words(config.shape);
  std::string all;
  for (const KvGroupConfig& group : config.kv_groups) {
    all += (all.empty() ? "" : ", ") + group.name + " (" + std::string(to_string(group.kind)) +
           "): " + words(group.shape);
  }
  return all;
}

bool has_expired(const SnapshotRecord& record, std::int64_t unix_ms) {
  return record.expires_at_unix_ms != 0 && record.expires_at_unix_ms <= unix_ms;
}

bool is_there(const Cache& cache, const BlockKey& key) {
  const KeyView view = key;
  return cache.contains({&view, 1})[0];
}

Tier highest(const SnapshotRecord& record) {
  return *std::find_if(kTiers.begin(), kTiers.end(),
                       [&](Tier tier) { return (record.tiers & 1U << index_of(tier)) != 0; });
}

bool alike(const SnapshotRecord& a, const SnapshotRecord& b) {
  return highest(a) == highest(b) && a.priority == b.priority &&
         a.key.kv_group() == b.key.kv_group();
}

std::uint64_t max_batch(const CacheCore& core) {
  return std::clamp<std::uint64_t>(kBatchBytes / core.block_bytes, 1, kMaxBatch);
}

// Error: out_of_range for metadata that the cache does not take.
Result<> check_metadata(const CacheCore& core, const SnapshotRecord& record) {
  if (record.metadata.size() <= core.options().max_metadata_bytes) return {};
  return Error{ErrorCode::out_of_range, "a block of the snapshot has " +
                                            std::to_string(record.metadata.size()) +
                                            " bytes of metadata; this server takes " +
                                            std::to_string(core.options().max_metadata_bytes)};
}

// Error: state_conflict for different shapes.
Result<> check_shapes(const CacheCore& core, const SnapshotReader& reader) {
  const CacheConfig& saved = reader.header().config;
  if (same_shapes(saved, core.config)) return {};
  return Error{ErrorCode::state_conflict, "the snapshot's blocks have " + words(saved) +
                                              "; those of cache " + core.config.name + " have " +
                                              words(core.config)};
}

class Loading {
 public:
  Loading(std::shared_ptr<Cache> cache, SnapshotReader& reader, SnapshotProgress& progress)
      : core_(*cache->core()), cache_(std::move(cache)), reader_(reader), progress_(progress) {}

  // Call it before anything changes.
  Result<> check_all() {
    for (auto block = reader_.next(); block; block = reader_.next()) {
      CAIRN_TRY(progress_.check_wanted());
      CAIRN_TRY(reader_.check(*block));
      reader_.done_before(*block);
    }
    reader_.rewind();
    return {};
  }

  Result<> load_all() {
    const std::uint64_t most = max_batch(core_);
    std::vector<SnapshotReader::Block> batch;
    for (auto block = reader_.next(); block; block = reader_.next()) {
      if (has_expired(block->record, core_.services->clock.unix_ms())) continue;
      if (is_there(*cache_, block->record.key)) {
        progress_.add(TransferTable::Arrived{.blocks = 1});
        continue;
      }
      if (batch.size() == most || (!batch.empty() && !alike(batch.front().record, block->record))) {
        CAIRN_TRY(load(batch));
        batch.clear();
      }
      batch.push_back(std::move(*block));
    }
    return batch.empty() ? Result<>() : load(batch);
  }

  // Into the slots of a plan, which has left out the blocks that had expired by then.
  Result<> load_planned(const SnapshotReplacement& replacement, ReservedSlots& slots) {
    std::vector<SnapshotReader::Block> batch;
    for (const ReplacementPlan::Run& run : replacement.plan->runs()) {
      CAIRN_TRY(progress_.check_wanted());
      batch.clear();
      while (batch.size() < run.count) {
        auto block = reader_.next();
        if (!has_expired(block->record, replacement.unix_ms)) batch.push_back(std::move(*block));
      }
      Ingest ingest(cache_, {});
      for (const SnapshotReader::Block& block : batch) ingest.add(described(block.record));
      CAIRN_TRY(adopt(ingest, slots.next(run.count)));
      CAIRN_TRY(fill(batch, ingest));
    }
    return {};
  }

 private:
  using Blocks = std::span<const SnapshotReader::Block>;

  Result<> load(Blocks batch) {
    CAIRN_TRY(progress_.check_wanted());
    Error refused{ErrorCode::no_capacity, "cache " + core_.config.name + " has no free block left"};
    Ingest ingest(cache_, {});
    for (const SnapshotReader::Block& block : batch) ingest.add(described(block.record));
    for (Tier tier : by_preference(highest(batch.front().record))) {
      if (cache_->layout(tier) == nullptr) continue;
      Awaited<> granted;
      ingest.allocate({.tier = tier,
                       .priority = batch.front().record.priority,
                       .room = Ingest::Room::free_slots},
                      granted.done());
      const auto got = granted.wait();
      if (got) return fill(batch, ingest);
      if (got.error().code != ErrorCode::no_capacity) return got.error();
    }
    if (batch.size() == 1) return refused;
    const std::size_t half = batch.size() / 2;
    CAIRN_TRY(load(batch.first(half)));
    return load(batch.subspan(half));
  }

  // While clients have as many leases as may be open, waits for one to end.
  Result<> adopt(Ingest& ingest, std::span<const SlotRef> slots) {
    while (true) {
      auto adopted = ingest.adopt(slots);
      if (adopted || adopted.error().code != ErrorCode::too_many) return adopted;
      if (auto wanted = progress_.check_wanted(); !wanted) {
        CacheLock locked(core_, LockUse::upkeep);
        for (const SlotRef at : slots) locked->store.unpin(at);
        return wanted;
      }
      std::this_thread::sleep_for(kLeaseAfter);
    }
  }

  CommitBlock described(const SnapshotRecord& record) const {
    CommitBlock block{.handle = {},
                      .key = record.key,
                      .parent = record.parent,
                      .metadata = record.metadata,
                      .epoch = record.epoch};
    if (record.expires_at_unix_ms != 0) {
      // A block that expires right now is loaded, and expires normally.
      const std::int64_t left =
          std::max<std::int64_t>(1, record.expires_at_unix_ms - core_.services->clock.unix_ms());
      block.ttl_ms = std::min(static_cast<std::uint64_t>(left), kMaxTtlMs);
    }
    return block;
  }

  Result<> fill(Blocks batch, Ingest& ingest) {
    CAIRN_TRY(write_all(batch, ingest));
    Awaited<> committed;
    ingest.commit(Ingest::Then::hold, committed.done());
    CAIRN_TRY(committed.wait());
    // Restored blocks count as used before all blocks in the cache, in the snapshot's order.
    std::vector<std::int64_t> last_uses;
    for (const SnapshotReader::Block& block : batch) {
      last_uses.push_back(block.record.last_use_unix_ms);
    }
    ingest.release_as_used(last_uses);
    progress_.add(TransferTable::Arrived{.blocks = batch.size(),
                                         .bytes = batch.size() * batch.front().record.block_bytes});
    reader_.done_before(batch.back());
    return {};
  }

  // Checks the bytes in their slots, before anyone can find the blocks.
  Result<> write_all(Blocks batch, Ingest& ingest) {
    std::vector<Awaited<>> finished;
    Result<> answer;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      Awaited<std::span<const iovec>> room;
      ingest.room(i, room.done());
      const auto where = room.wait();
      answer = where ? reader_.read(batch[i], *where) : Result<>(where.error());
      if (!answer) break;
      finished.emplace_back();
      ingest.finish(i, finished.back().done());
    }
    for (Awaited<>& one : finished) {
      auto ended = one.wait();
      if (!ended && answer) answer = std::move(ended);
    }
    return answer;
  }

  CacheCore& core_;
  const std::shared_ptr<Cache> cache_;
  SnapshotReader& reader_;
  SnapshotProgress& progress_;
};

}  // namespace

Result<SnapshotFit> fit(CacheCore& core, const Cache& cache, SnapshotReader& reader) {
  CAIRN_TRY(check_shapes(core, reader));
  SnapshotFit found;
  const std::int64_t now = core.services->clock.unix_ms();
  for (auto block = reader.next(); block; block = reader.next()) {
    const SnapshotRecord& record = block->record;
    CAIRN_TRY(check_metadata(core, record));
    if (has_expired(record, now)) continue;
    ++found.wanted;
    if (!is_there(cache, record.key)) ++found.missing;
  }
  reader.rewind();
  CacheLock locked(core, LockUse::upkeep);
  for (Tier tier : kTiers) found.room += locked->store.pool(tier).unused_units();
  return found;
}

Result<SnapshotReplacement> plan_replacement(CacheCore& core, SnapshotReader& reader) {
  CAIRN_TRY(check_shapes(core, reader));
  auto plan = std::make_shared<ReplacementPlan>(core);
  SnapshotReplacement made{.unix_ms = core.services->clock.unix_ms()};
  std::optional<SnapshotRecord> first;  // of a batch
  std::uint32_t count = 0;
  const auto place = [&] {
    if (!first) return;
    // Blocks after one without room would have no parent, so nothing more is placed.
    if (made.placed + count == made.wanted) {
      made.placed += plan->add({.first = highest(*first),
                                .kv_group = first->key.kv_group(),
                                .priority = first->priority,
                                .count = count});
    }
  };
  for (auto block = reader.next(); block; block = reader.next()) {
    CAIRN_TRY(check_metadata(core, block->record));
    if (has_expired(block->record, made.unix_ms)) continue;
    if (first && (count == max_batch(core) || !alike(*first, block->record))) {
      place();
      first.reset();
    }
    if (!first) {
      first = block->record;
      count = 0;
    }
    ++count;
    ++made.wanted;
  }
  place();
  reader.rewind();
  made.plan = std::move(plan);
  return made;
}

Result<> replace_blocks(std::shared_ptr<Cache> cache, SnapshotReader& reader,
                        const SnapshotReplacement& replacement, SnapshotProgress& progress) {
  const std::shared_ptr<CacheCore> core = cache->core();
  Loading loading(std::move(cache), reader, progress);
  CAIRN_TRY(loading.check_all());
  auto slots = empty_for(core, *replacement.plan, progress);
  if (!slots) return std::move(slots).error();
  return loading.load_planned(replacement, *slots);
}

Result<> load_blocks(std::shared_ptr<Cache> cache, SnapshotReader& reader, bool partial,
                     SnapshotProgress& progress) {
  TransferTable& transfers = cache->core()->services->transfers;
  Loading loading(std::move(cache), reader, progress);
  CAIRN_TRY(loading.check_all());
  auto loaded = loading.load_all();
  if (!loaded && partial && loaded.error().code == ErrorCode::no_capacity) {
    // All that fits is loaded; the rest was not promised.
    auto status = transfers.status(progress.id());
    if (status) progress.set_total(status->blocks_done);
    return {};
  }
  return loaded;
}

}  // namespace cairn
