#include <algorithm>
#include <atomic>
#include <string>

#include "base/hex.hpp"
#include "blockmgr/cache/block_pieces.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Where a reader's pin is counted: under a holder's quota, and under the cache's quota for readers
// of many blocks.
struct Counted {
  std::shared_ptr<LeaseQuota> pins = {};  // null: no quota
  bool of_many = false;

  // Counts one block. Error: lease_quota, with nothing counted.
  Result<> begin(CacheLock& locked) const {
    const auto& quota = locked.core().settings->quota.max_leased_blocks;
    if (of_many && quota && locked->reading >= *quota) {
      return Error{ErrorCode::lease_quota,
                   "requests already read " + std::to_string(locked->reading) +
                       " blocks of cache " + locked.core().config.name +
                       ", and one more would exceed its quota of " + std::to_string(*quota) +
                       "; ask for fewer blocks, or wait until other requests end"};
    }
    if (pins != nullptr && !pins->take(1)) return pins->refusal(1);
    locked->reading += of_many ? 1U : 0U;
    return {};
  }
  void end(CacheLock& locked) const {
    locked->reading -= of_many ? 1U : 0U;
    if (pins != nullptr) pins->remove(1);
  }
};

// Shared by the reader and its fetch. The last of them releases the pin and the staging. The pin is
// released earlier if the bytes were copied to staging.
struct Read : std::enable_shared_from_this<Read> {
  // The effect of the unpin on the block.
  enum class Pin : std::uint8_t {
    use,
    in_place,  // no effect
    leaving,   // drops the block, unless it was used
  };
  Read(std::shared_ptr<CacheCore> c, SlotRef slot, BlockHandle h, const BlockPart& p,
       Pin kind = Pin::use, Counted counts = {})
      : core(std::move(c)), at(slot), handle(h), part(p), pin(kind), counted(std::move(counts)) {}
  // The creator takes the pin, under the lock.
  ~Read() {
    if (pinned) unpin();
  }

  void fetch(Done<std::span<const iovec>> ready);
  void load(Done<std::span<const iovec>> ready);
  void loaded(const JobOutcome& outcome, Done<std::span<const iovec>> ready);
  void unpin() {
    CacheLock locked(*core, LockUse::read);
    counted.end(locked);
    switch (pin) {
      case Pin::use:
        locked->store.unpin(at);
        break;
      case Pin::in_place:
        locked->store.unpin_in_place(at);
        break;
      case Pin::leaving:
        locked->evict_to_remote.ended();
        locked->transfers.let_go(locked, at, reason);
        locked.serve_again();
        break;
    }
    pinned = false;
  }

  const std::shared_ptr<CacheCore> core;
  const SlotRef at;
  const BlockHandle handle;
  const BlockPart part;
  const Pin pin;
  const Counted counted;
  EvictionReason reason = EvictionReason::capacity;  // for Pin::leaving
  std::uint64_t checksum = 0;  // of the block, if known at the start; 0: unknown
  std::optional<CanonicalStaging::Block> staging;
  std::vector<iovec> bytes;
  bool pinned = true;  // changed by the fetch; there is one at a time
  std::atomic<bool> abandoned{false};
};

// Blocks that read_prefix() pins under one hold of the lock, each with one memory allocation.
constexpr std::size_t kStepReaders = 64;

const Error kReaderGone{ErrorCode::cancelled, "the reader has gone"};

void Read::fetch(Done<std::span<const iovec>> ready) {
  const BlockLayout& layout = core->layout(at.tier(), handle.kv_group);
  if (is_host_memory(layout.storage_kind())) {
    if (bytes.empty()) bytes = bytes_in_place(layout, at.slot(), part);
    return ready(std::span<const iovec>(bytes));
  }
  if (!bytes.empty()) return ready(std::span<const iovec>(bytes));
  core->staging.acquire(handle.kv_group, [self = shared_from_this(), ready = std::move(ready)](
                                             Result<CanonicalStaging::Block> block) mutable {
    if (!block) return ready(std::move(block).error());
    if (self->abandoned) return ready(kReaderGone);
    self->staging.emplace(std::move(*block));
    self->load(std::move(ready));
  });
}

void Read::load(Done<std::span<const iovec>> ready) {
  TransferJob job;
  job.source = &core->layout(at.tier(), handle.kv_group);
  job.destination = &staging->layout();
  job.pairs = {{at.slot(), 0}};
  core->submit(std::move(job),
               [self = shared_from_this(), ready = std::move(ready)](JobOutcome outcome) mutable {
                 self->loaded(outcome, std::move(ready));
               },
               {});
}

void Read::loaded(const JobOutcome& outcome, Done<std::span<const iovec>> ready) {
  if (outcome.state == JobState::done) {
    // Unpin before `ready` runs: a caller that has the bytes must find the block unpinned.
    if (pin != Pin::leaving) unpin();
    if (abandoned) return ready(kReaderGone);
    bytes = bytes_in_canonical(staging->data(), core->shape(handle.kv_group), part);
    return ready(std::span<const iovec>(bytes));
  }
  if (outcome.failures.empty()) {
    return ready(Error{ErrorCode::cancelled, "the server is shutting down"});
  }
  const Error& error = outcome.failures.front().error;
  {
    CacheLock locked(*core, LockUse::read);
    locked->transfers.drop_unreadable(locked, at, handle.generation, error);
  }
  // A caller that then reads another copy must not hold two blocks.
  if (pin != Pin::leaving) unpin();
  ready(error);
}

// Errors: unknown_key; those of check_usable().
Result<EntryNumber> entry_of(CacheLock& locked, KeyView key) {
  CAIRN_TRY(locked.check_usable());
  const EntryNumber entry = locked->store.find(key, locked.now());
  if (entry != kNoEntry) return entry;
  return Error{ErrorCode::unknown_key,
               "key " + to_hex(key.bytes()) + " is not in cache " + locked.core().config.name};
}

}  // namespace

// A pin; after the first fetch(), also the state of the fetch. A request may hold 65,536 of these
// while its client takes the blocks, so keep it small until then.
struct BlockReader::Impl {
  Impl(std::shared_ptr<CacheCore> c, SlotRef slot, Counted counts, ShardSelector of = {})
      : core(std::move(c)),
        counted(std::move(counts)),
        at(slot),
        shard(static_cast<std::uint16_t>(of.shard)),
        shards(static_cast<std::uint16_t>(of.shards)) {}
  explicit Impl(std::shared_ptr<Read> r) : core(r->core), at(r->at), read(std::move(r)) {}
  static BlockReader in_place(CacheLock& locked, EntryNumber entry, Counted counts = {});
  ~Impl() {
    static_assert(sizeof(Impl) <= 64, "a long prefix would be held by much more than its pins");
    if (read) {
      read->abandoned = true;
    } else {
      CacheLock locked(*core, LockUse::read);
      counted.end(locked);
      locked->store.unpin(at);
    }
  }

  BlockPart part() const {
    return shards == 1 ? BlockPart() : BlockPart(ShardSelector{.shard = shard, .shards = shards});
  }
  // The slot is pinned, so its generation and handle stay the same.
  BlockHandle handle() const {
    if (read) return read->handle;
    CacheLock locked(*core, LockUse::read);
    return locked->store.handle(at);
  }

  const std::shared_ptr<CacheCore> core;
  const Counted counted = {};  // until `read` takes it over
  const SlotRef at;
  // Until `read` has them: the shard to read; one of one is the whole block.
  const std::uint16_t shard = 0;
  const std::uint16_t shards = 1;
  std::shared_ptr<Read> read;  // null: only pinned (Pin::use)
};

BlockReader::BlockReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BlockReader::BlockReader(BlockReader&&) noexcept = default;
BlockReader& BlockReader::operator=(BlockReader&&) noexcept = default;
BlockReader::~BlockReader() = default;

BlockHandle BlockReader::handle() const { return impl_->handle(); }

std::uint64_t BlockReader::size_bytes() const {
  return cairn::part_bytes(impl_->core->shape(impl_->handle().kv_group),
                           impl_->read ? impl_->read->part : impl_->part());
}

void BlockReader::fetch(Done<std::span<const iovec>> ready) {
  if (!impl_->read) {
    impl_->read = std::make_shared<Read>(impl_->core, impl_->at, impl_->handle(), impl_->part(),
                                         Read::Pin::use, impl_->counted);
  }
  // The reader may be destroyed by `ready`.
  const std::shared_ptr<Read> read = impl_->read;
  read->fetch(std::move(ready));
}

std::vector<iovec> BlockReader::in_place() const {
  const BlockLayout& layout = impl_->core->layout(impl_->at.tier(), impl_->handle().kv_group);
  return bytes_in_place(layout, impl_->at.slot(), std::nullopt);
}

std::optional<std::uint64_t> BlockReader::checksum() const {
  const std::uint64_t known = impl_->read->checksum;
  return known == 0 ? std::nullopt : std::optional(known);
}

void BlockReader::keep_checksum(std::uint64_t checksum) {
  const Read& read = *impl_->read;
  CacheLock locked(*read.core, LockUse::read);
  BlockStore& store = locked->store;
  const SlotRecord& slot = store.record(read.at);
  // A block read through staging is no longer pinned: the slot may hold another key.
  const bool is_there =
      slot.generation == read.handle.generation && slot.life == SlotLife::committed && !slot.gone;
  if (is_there) store.details(slot.owner).checksum = checksum;
}

Result<BlockReader> Cache::read(KeyView key, BlockPart part, const LeaseHolder& reader,
                                const std::shared_ptr<LeaseQuota>& pins) {
  CacheCore& core = *core_;
  CAIRN_TRY(check_part(core.shape(key.kv_group), part));
  CacheLock locked(core, LockUse::read);
  const auto entry = entry_of(locked, key);
  if (!entry) return entry.error();
  Counted counted{.pins = pins};
  CAIRN_TRY(counted.begin(locked));
  const SlotRef at = locked->store.highest_copy(locked->store.entry(*entry));
  locked->store.pin(at);
  locked->store.used(at, locked->leases.user_of(reader));
  locked->store.record(at).used_again = true;
  auto read = std::make_shared<Read>(core_, at, locked->store.handle(at), part, Read::Pin::use,
                                     std::move(counted));
  read->checksum = locked->store.details(*entry).checksum;
  return BlockReader(std::make_unique<BlockReader::Impl>(std::move(read)));
}

// Pins the key's highest copy without counting a use.
BlockReader BlockReader::Impl::in_place(CacheLock& locked, EntryNumber entry, Counted counts) {
  const SlotRef at = locked->store.highest_copy(locked->store.entry(entry));
  locked->store.pin_in_place(at);
  auto read = std::make_shared<Read>(locked.core().shared_from_this(), at, locked->store.handle(at),
                                     std::nullopt, Read::Pin::in_place, std::move(counts));
  read->checksum = locked->store.details(entry).checksum;
  return BlockReader(std::make_unique<Impl>(std::move(read)));
}

Result<BlockReader> Cache::peek(KeyView key) {
  CacheLock locked(*core_, LockUse::read);
  const auto entry = entry_of(locked, key);
  if (!entry) return entry.error();
  return BlockReader::Impl::in_place(locked, *entry);
}

Result<BlockReader> Cache::lend(KeyView key, const std::shared_ptr<LeaseQuota>& pins) {
  CacheLock locked(*core_, LockUse::read);
  const auto entry = entry_of(locked, key);
  if (!entry) return entry.error();
  Counted counted{.pins = pins, .of_many = true};
  CAIRN_TRY(counted.begin(locked));
  BlockReader reader = BlockReader::Impl::in_place(locked, *entry, std::move(counted));
  locked->store.lent(*entry);
  return reader;
}

void BlockReader::hand_out(CacheLock& locked, const Leaving& leaving,
                           const std::shared_ptr<const EvictToRemoteTerms>& to) {
  const std::shared_ptr<CacheCore> core = locked.core().shared_from_this();
  auto blocks = std::make_shared<std::vector<LeavingBlock>>();
  blocks->reserve(leaving.victims.size());
  for (const SlotRef at : leaving.victims) {
    const EntryNumber number = locked->store.record(at).owner;
    auto read = std::make_shared<Read>(core, at, locked->store.handle(at), std::nullopt,
                                       Read::Pin::leaving);
    read->checksum = locked->store.details(number).checksum;
    read->reason = leaving.reason;
    LeavingBlock block{.key = locked->store.key(number),
                       .reader = BlockReader(std::make_unique<Impl>(read))};
    block.parent = locked->store.key_before(number);
    blocks->push_back(std::move(block));
  }
  locked.after([to, blocks] { to->taker(std::move(*blocks)); });
}

void Cache::set_evict_to_remote(EvictToRemoteTerms terms) {
  CacheLock locked(*core_, LockUse::look);
  locked->store.set_goes_remote(terms.taker != nullptr);
  const auto to = std::make_shared<const EvictToRemoteTerms>(std::move(terms));
  locked->evict_to_remote.set(
      {.taker =
           [to](CacheLock& under, std::span<const SlotRef> victims, EvictionReason reason) {
             BlockReader::hand_out(under, {victims, reason}, to);
           },
       .wait_at_most = to->wait_at_most});
}

std::uint64_t Cache::evicted_without_remote() const {
  CacheLock locked(*core_, LockUse::look);
  return locked->evict_to_remote.late();
}

Result<std::vector<BlockReader>> Cache::read_prefix(std::span<const KeyView> keys,
                                                    const LeaseHolder& reader,
                                                    const std::shared_ptr<LeaseQuota>& pins,
                                                    std::optional<ShardSelector> shard) {
  if (shard && !keys.empty()) CAIRN_TRY(check_part(core_->shape(keys[0].kv_group), shard));
  // Declared before the lock: after an error, each reader takes the lock when destroyed.
  std::vector<BlockReader> readers;
  readers.reserve(keys.size());
  CacheLock locked(*core_, LockUse::read);
  const UserNumber user = locked->leases.user_of(reader);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i > 0 && i % kStepReaders == 0) locked.yield();
    if (locked->dropped) break;
    const EntryNumber entry = locked->store.find(keys[i], locked.now());
    if (entry == kNoEntry) break;
    Counted counted{.pins = pins, .of_many = true};
    CAIRN_TRY(counted.begin(locked));
    const SlotRef at = locked->store.highest_copy(locked->store.entry(entry));
    locked->store.pin(at);
    locked->store.used(at, user);
    locked->store.record(at).used_again = true;
    readers.push_back(BlockReader(std::make_unique<BlockReader::Impl>(
        core_, at, std::move(counted), shard.value_or(ShardSelector{}))));
  }
  return readers;
}

}  // namespace cairn
