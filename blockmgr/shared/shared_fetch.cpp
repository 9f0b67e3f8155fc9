#include "blockmgr/shared/shared_fetch.hpp"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "base/hex.hpp"
#include "blockmgr/cache/cache_core.hpp"
#include "transport/collective/pieces.hpp"

namespace cairn {
namespace {

// Slots that are allocated, filled and committed together: enough to keep a node's connections
// busy, and few enough that a cache has them free.
constexpr std::uint64_t kStepBytes = 16ull << 20;
constexpr std::uint64_t kMaxStep = 64;
// Ways to servers that are tried for a block; each may take its time-out.
constexpr std::size_t kMaxTries = 3;

Error absent(const BlockKey& key) {
  return {ErrorCode::unknown_key,
          "key " + to_hex(key.view().bytes()) + " is in the shared tier no more"};
}

Error wrong(const BlockKey& key, WrongValue why) {
  return {ErrorCode::checksum_mismatch, "what the shared tier gave for key " +
                                            to_hex(key.view().bytes()) +
                                            " is not it: " + std::string(to_string(why))};
}

class Fetching : public std::enable_shared_from_this<Fetching> {
 public:
  Fetching(SharedFetch fetch, TransferTable& transfers, std::uint32_t lease_ms, TransferId id)
      : fetch_(std::move(fetch)), transfers_(transfers), lease_ms_(lease_ms), id_(id) {
    fetch_.context->under_way.enter();
  }
  ~Fetching() { fetch_.context->under_way.leave(); }

  void next() {
    const std::uint64_t block_bytes = cache().block_bytes();
    const std::uint64_t most = std::clamp<std::uint64_t>(kStepBytes / block_bytes, 1, kMaxStep);
    const std::uint64_t count = std::min<std::uint64_t>(most, fetch_.keys.size() - arrived_);
    if (count == 0 || error_) return finish();
    items_ = std::vector<Item>(count);
    cache().allocate({.count = static_cast<std::uint32_t>(count),
                      .tier = fetch_.to,
                      .lease_ms = lease_ms_,
                      .quota = fetch_.quota},
                     [self = shared_from_this()](Result<Allocation> slots) {
                       self->allocated(std::move(slots));
                     });
  }

 private:
  struct Item {
    std::optional<BlockWriter> writer;
    SharedHeader header{};
    std::vector<iovec> room;
    SharedBlock block;
    std::optional<Error> error;
    std::size_t tries = 0;
  };

  Cache& cache() const { return *fetch_.context->cache; }
  const BlockKey& key_of(std::size_t item) const { return fetch_.keys[arrived_ + item]; }

  void allocated(Result<Allocation> slots) {
    if (!slots) {
      error_ = std::move(slots).error();
      return finish();
    }
    slots_ = std::move(*slots);
    left_ = items_.size();
    for (std::size_t i = 0; i < items_.size(); ++i) fill(i);
  }

  void fill(std::size_t i) {
    auto writer = cache().write({.lease = slots_.lease, .block = slots_.blocks[i]});
    if (!writer) return end_item(i, std::move(writer).error());
    items_[i].writer.emplace(std::move(*writer));
    items_[i].writer->room(
        [self = shared_from_this(), i](const Result<std::span<const iovec>>& room) {
          if (!room) return self->end_item(i, room.error());
          self->read(i, *room);
        });
  }

  void read(std::size_t i, std::span<const iovec> room) {
    items_[i].room.assign(room.begin(), room.end());
    if (!fetch_.sources.empty()) return read_from_next(i, absent(key_of(i)));
    SharedContext& context = *fetch_.context;
    context.store.read(
        {.name = context.name_of(key_of(i)), .into = memory_of(items_[i])},
        [self = shared_from_this(), i](const Result<bool>& there) { self->have_value(i, there); });
  }

  static std::vector<iovec> memory_of(Item& item) {
    std::vector<iovec> into{{item.header.data(), item.header.size()}};
    into.insert(into.end(), item.room.begin(), item.room.end());
    return into;
  }

  void have_value(std::size_t i, const Result<bool>& there) {
    SharedContext& context = *fetch_.context;
    if (there && !*there) {
      ++context.counters.absent;
      return end_item(i, absent(key_of(i)));
    }
    if (!there && there.error().code != ErrorCode::wrong_length) {
      return end_item(i, there.error());
    }
    if (const auto why = look_at(i, there)) {
      context.store.erase(context.name_of(key_of(i)));
      return end_item(i, wrong(key_of(i), *why));
    }
    finish_item(i);
  }

  // `why` is what is told where there is no next one.
  void read_from_next(std::size_t i, const Error& why) {
    Item& item = items_[i];
    const BlockSources& sources = fetch_.sources[arrived_ + i];
    if (item.tries == std::min(sources.size(), kMaxTries)) return end_item(i, why);
    const BlockSource& source = sources[item.tries++];
    const SharedContext& context = *fetch_.context;
    std::string target = "/v1/caches/" + source.cache + "/keys/";
    append_hex(target, key_of(i).view().bytes());
    context.peers->read({.server = source.server,
                         .target = target + "?shared=" + context.name_space,
                         .into = memory_of(item)},
                        [self = shared_from_this(), i, &source](const Result<bool>& there) {
                          self->have_from(i, source, there);
                        });
  }

  void have_from(std::size_t i, const BlockSource& source, const Result<bool>& there) {
    if (!there && there.error().code != ErrorCode::wrong_length) {
      return read_from_next(i, there.error());
    }
    if (there && !*there) {
      ++fetch_.context->counters.absent;
      fetch_.is_not_there(key_of(i), source);
      return read_from_next(i, absent(key_of(i)));
    }
    if (const auto why = look_at(i, there)) {
      fetch_.is_not_there(key_of(i), source);
      return read_from_next(i, wrong(key_of(i), *why));
    }
    finish_item(i);
  }

  // Why what has been read is not the block; counted.
  std::optional<WrongValue> look_at(std::size_t i, const Result<bool>& there) {
    Item& item = items_[i];
    SharedContext& context = *fetch_.context;
    std::optional<WrongValue> why;
    if (!there) {
      why = WrongValue::length;
    } else {
      SharedHeaderRead read =
          read_shared_header(item.header, {.fingerprint = context.fingerprint,
                                           .key = key_of(i),
                                           .size_bytes = cache().block_bytes()});
      why = read.wrong;
      if (!why && read.block.checksum != checksum_of(item.room)) why = WrongValue::checksum;
      item.block = std::move(read.block);
    }
    if (why) ++context.counters.wrong[static_cast<std::size_t>(*why)];
    return why;
  }

  void finish_item(std::size_t i) {
    items_[i].writer->finish([self = shared_from_this(), i](const Result<>& finished) {
      self->end_item(i, finished ? std::nullopt : std::optional(finished.error()));
    });
  }

  void end_item(std::size_t i, std::optional<Error> error) {
    items_[i].error = std::move(error);
    if (--left_ == 0) commit();
  }

  // The prefix that has come.
  void commit() {
    const auto failed = std::ranges::find_if(items_, [](const Item& item) { return !!item.error; });
    if (failed != items_.end()) error_ = failed->error;
    std::vector<CommitBlock> blocks;
    for (auto item = items_.begin(); item != failed; ++item) {
      const auto i = static_cast<std::size_t>(item - items_.begin());
      blocks.push_back({.handle = slots_.blocks[i],
                        .key = key_of(i),
                        .parent = item->block.parent,
                        .epoch = item->block.epoch});
    }
    for (Item& item : items_) item.writer.reset();
    if (blocks.empty()) {
      static_cast<void>(cache().release(slots_.lease));
      return finish();
    }
    const std::size_t count = blocks.size();
    cache().commit(
        slots_.lease, std::move(blocks),
        [self = shared_from_this(), count](const Result<std::vector<CommitStatus>>& done) {
          self->committed(count, done);
        },
        {.release = true});
  }

  void committed(std::size_t count, const Result<std::vector<CommitStatus>>& done) {
    if (!done) {
      error_ = done.error();
      static_cast<void>(cache().release(slots_.lease));
      return finish();
    }
    const std::uint64_t bytes = count * cache().block_bytes();
    fetch_.context->counters.fetched_blocks += count;
    fetch_.context->counters.fetched_bytes += bytes;
    transfers_.add(id_, TransferTable::Arrived{.blocks = count, .bytes = bytes});
    arrived_ += count;
    next();
  }

  void finish() {
    if (error_) {
      transfers_.add(id_, TransferStatus::Failure{fetch_.keys[arrived_], *error_});
      transfers_.set_error(id_, *error_);
    }
    fetch_.ended(arrived_);
    transfers_.end(id_, error_ ? TransferState::failed : TransferState::done);
  }

  SharedFetch fetch_;
  TransferTable& transfers_;
  const std::uint32_t lease_ms_;
  const TransferId id_;
  std::size_t arrived_ = 0;  // of the keys, from the first on
  // Of the step that is under way.
  std::vector<Item> items_;
  Allocation slots_;
  std::atomic<std::size_t> left_{0};
  std::optional<Error> error_;
};

}  // namespace

Result<TransferId> SharedFetches::start(SharedFetch fetch) {
  const std::shared_ptr<CacheCore> core = fetch.context->cache->core_;
  TransferTable& transfers = core->services->transfers;
  auto id = transfers.open(core, fetch.keys.size());
  if (!id) return id;
  transfers.begin(*id);
  std::make_shared<Fetching>(std::move(fetch), transfers, core->options().max_lease_ms, *id)
      ->next();
  return id;
}

}  // namespace cairn
