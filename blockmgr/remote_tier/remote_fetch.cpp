#include "blockmgr/remote_tier/remote_fetch.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "base/hex.hpp"
#include "base/mutex.hpp"
#include "base/pieces.hpp"
#include "blockmgr/cache/ingest.hpp"
#include "blockmgr/core/cache_core.hpp"
#include "blockmgr/remote_tier/remote_source_read.hpp"

namespace cairn {
namespace {

// Steps in progress: slots that are allocated, filled and committed together. While one step is
// checked and committed, the others keep a node's connections busy. Their total is small enough
// that a cache usually has it free.
constexpr std::size_t kMaxSteps = 4;

Error wrong(const BlockKey& key, WrongValue why) {
  return {ErrorCode::checksum_mismatch, "the shared tier's value for key " +
                                            to_hex(key.view().bytes()) +
                                            " is wrong: " + std::string(to_string(why))};
}

// Consecutive keys, from their slots to their commit.
class Step : public std::enable_shared_from_this<Step> {
 public:
  struct Part {
    std::size_t first = 0;  // index of the first key
    std::size_t count = 0;
  };
  // A block that has room for its bytes.
  struct ToRead {
    std::shared_ptr<Step> step;
    std::size_t item = 0;
  };
  Step(std::shared_ptr<RemoteFetch> fetch, Part part)
      : fetch_(std::move(fetch)),
        first_(part.first),
        items_(part.count),
        left_(part.count),
        ingest_(fetch_->context->cache, {.quota = fetch_->quota}) {
    // The parent of each block comes with its header.
    for (std::size_t i = 0; i < part.count; ++i) ingest_.add({.handle = {}, .key = key_of(i)});
  }

  struct Filling {
    // Runs for each block as soon as it has room: before fill() returns, unless room is short.
    UniqueFunction<void(ToRead)> read;
    UniqueFunction<void()> filled;  // runs once, when no more bytes come
  };
  void fill(Filling filling) {
    filling_ = std::move(filling);
    ingest_.allocate({.tier = fetch_->to}, [self = shared_from_this()](const Result<>& granted) {
      granted ? self->find_room() : self->filling_.filled();
    });
  }

  // --- the blocks that `read` got
  RemoteStore::Read begin_read(std::size_t i) {
    fetch_->context->codec.reading.begin();
    return {.name = fetch_->context->name_of(key_of(i)), .into = memory_of_value(items_[i])};
  }
  void have_value(std::size_t i, const RemoteStore::ReadResult& size_bytes) {
    fetch_->context->codec.reading.end(size_bytes ? size_bytes->value_or(0) : 0);
    if (size_bytes && !*size_bytes) {
      ++fetch_->context->counters.absent;
      fetch_->context->events.removed(key_of(i));
      return end_item(i, absent_from_tier(key_of(i)));
    }
    if (!size_bytes && size_bytes.error().code != ErrorCode::wrong_length) {
      return end_item(i, size_bytes.error());
    }
    const std::uint64_t come = size_bytes ? **size_bytes : 0;
    if (come <= kRemoteHeaderBytes) return check_value(i, WrongValue::length);
    if (come == kRemoteHeaderBytes + bytes_of(i)) return check_value(i, {});
    // The network's thread serves all caches, so it does not decode.
    fetch_->context->executor.post([self = shared_from_this(), i, come] {
      self->check_value(i, self->decode(i, come - kRemoteHeaderBytes));
    });
  }
  void read_from_others(std::vector<std::size_t> items) {
    const auto at = std::make_shared<const std::vector<std::size_t>>(std::move(items));
    SourceRead read{.context = fetch_->context};
    for (const std::size_t i : *at) {
      read.blocks.push_back({.key = key_of(i),
                             .sources = &fetch_->sources[first_ + i],
                             .into = memory_of_answer(items_[i])});
    }
    read.look = [self = shared_from_this(), at](std::size_t block, const Result<bool>& there) {
      const auto why = there ? self->look_at((*at)[block]) : WrongValue::length;
      return why ? Result<>(self->count_wrong((*at)[block], *why)) : Result<>();
    };
    read.is_not_there = [self = shared_from_this(), at](std::size_t block,
                                                        const BlockSource& source) {
      self->fetch_->is_not_there(self->key_of((*at)[block]), source);
    };
    read.ended = [self = shared_from_this(), at](std::size_t block, const Result<>& result) {
      if (result) return self->finish_item((*at)[block]);
      self->end_item((*at)[block], result.error());
    };
    start_source_read(std::move(read));
  }

  // Commits the prefix that arrived. If `blocks` is less than all, `error` is set.
  struct Committed {
    std::size_t blocks = 0;
    std::uint64_t bytes = 0;
    std::optional<Error> error = {};
  };
  void commit(UniqueFunction<void(Committed)> done) {
    std::optional<Error> error;
    if (const Error* const first = ingest_.first_error()) error = *first;
    std::size_t count = 0;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (count < i || ingest_.items()[i].error) {
        ingest_.fail(i, *error);
        continue;
      }
      ingest_.block(i).parent = items_[i].block.parent;
      ingest_.block(i).epoch = items_[i].block.epoch;
      ++count;
      bytes += bytes_of(i);
    }
    ingest_.commit(Ingest::Then::hold,
                   [self = shared_from_this(), count, bytes, error = std::move(error),
                    done = std::move(done)](const Result<>& committed) mutable {
                     if (committed && count > 0)
                       return done({.blocks = count, .bytes = bytes, .error = error});
                     self->give_up();
                     done({.error = committed ? error : committed.error()});
                   });
  }
  // Releases the slots. Uncommitted ones become free.
  void give_up() {
    ingest_.release();
    items_.clear();
  }

 private:
  // A block's data apart from its slot.
  struct Item {
    RemoteHeader header{};
    std::vector<iovec> room;
    RemoteBlock block;
  };

  Cache& cache() const { return *fetch_->context->cache; }
  const BlockKey& key_of(std::size_t item) const { return fetch_->keys[first_ + item]; }
  std::uint64_t bytes_of(std::size_t item) const {
    return cache().block_bytes(key_of(item).kv_group());
  }

  void find_room() {
    for (std::size_t i = 0; i < items_.size(); ++i) {
      ingest_.room(i, [self = shared_from_this(), i](const Result<std::span<const iovec>>& room) {
        if (!room) return self->end_item(i, room.error());
        self->items_[i].room.assign(room->begin(), room->end());
        self->filling_.read({.step = self, .item = i});
      });
    }
  }

  static iovec memory_of_header(Item& item) { return {item.header.data(), item.header.size()}; }
  static std::vector<iovec> memory_of_value(Item& item) {
    std::vector<iovec> into{memory_of_header(item)};
    into.insert(into.end(), item.room.begin(), item.room.end());
    return into;
  }
  // Another server computes the checksum while it sends, so its header comes last.
  static std::vector<iovec> memory_of_answer(Item& item) {
    std::vector<iovec> into = item.room;
    into.push_back(memory_of_header(item));
    return into;
  }

  // An encoded value arrives where its plain bytes will be, which have more room than it needs.
  std::optional<WrongValue> decode(std::size_t i, std::uint64_t encoded_bytes) {
    RemoteContext& context = *fetch_->context;
    const std::span<const iovec> room = items_[i].room;
    std::array<std::byte, kEncodedHeadBytes> begin{};
    copy_first(room, std::span(begin).first(std::min(begin.size(), encoded_bytes)));
    if (!is_encoded(begin)) return WrongValue::length;
    if (!context.codec.decode_in_place(encoded_bytes, room)) return WrongValue::checksum;
    return {};
  }

  void check_value(std::size_t i, std::optional<WrongValue> why) {
    if (!why) why = look_at(i);
    if (!why) return finish_item(i);
    RemoteContext& context = *fetch_->context;
    context.store.erase(context.name_of(key_of(i)));
    context.events.removed(key_of(i));
    end_item(i, count_wrong(i, *why));
  }

  // Returns why the bytes are not the block.
  std::optional<WrongValue> look_at(std::size_t i) {
    Item& item = items_[i];
    RemoteHeaderRead read =
        read_remote_header(item.header, {.fingerprint = fetch_->context->fingerprint_of(key_of(i)),
                                         .key = key_of(i),
                                         .size_bytes = bytes_of(i)});
    if (read.wrong) return read.wrong;
    if (read.block.checksum != checksum_of(item.room)) return WrongValue::checksum;
    item.block = std::move(read.block);
    return {};
  }
  Error count_wrong(std::size_t i, WrongValue why) {
    ++fetch_->context->counters.wrong[static_cast<std::size_t>(why)];
    return wrong(key_of(i), why);
  }

  void finish_item(std::size_t i) {
    ingest_.finish(i, [self = shared_from_this(), i](const Result<>&) { self->end_item(i, {}); });
  }

  void end_item(std::size_t i, std::optional<Error> error) {
    if (error) ingest_.fail(i, std::move(*error));
    if (--left_ == 0) filling_.filled();
  }

  const std::shared_ptr<RemoteFetch> fetch_;
  const std::size_t first_;
  std::vector<Item> items_;
  std::atomic<std::size_t> left_;
  Filling filling_;
  Ingest ingest_;  // the same blocks as items_
};

// Steps are filled in parallel and committed in order.
class Fetching : public std::enable_shared_from_this<Fetching> {
 public:
  Fetching(RemoteFetch fetch, TransferTable& transfers, TransferId id)
      : fetch_(std::make_shared<RemoteFetch>(std::move(fetch))), transfers_(transfers), id_(id) {
    fetch_->context->under_way.enter();
  }
  ~Fetching() { fetch_->context->under_way.leave(); }

  // Does all that can be done. Call after each change. A nested or concurrent call returns at once
  // and leaves the work to the first.
  void go_on() {
    {
      MutexLock lock(mutex_);
      if (std::exchange(going_on_, true)) return;
    }
    while (auto act = next_act()) act();
  }

 private:
  struct UnderWay {
    std::shared_ptr<Step> step;
    bool is_filled = false;
  };

  UniqueFunction<void()> next_act() {
    MutexLock lock(mutex_);
    if (!committing_ && !steps_.empty() && steps_.front().is_filled) {
      committing_ = true;
      return [this, step = steps_.front().step, gives_up = error_.has_value()] {
        if (!gives_up) {
          return step->commit([self = shared_from_this()](const Step::Committed& committed) {
            self->committed(committed);
          });
        }
        step->give_up();
        committed({});
      };
    }
    const std::size_t left = fetch_->keys.size() - begun_;
    if (!error_ && left > 0 && steps_.size() < kMaxSteps) {
      const RemoteContext& context = *fetch_->context;
      const std::uint64_t most = std::clamp<std::uint64_t>(
          context.step_bytes / cache().block_bytes(), 1, context.step_blocks);
      const Step::Part part{.first = begun_, .count = std::min<std::size_t>(most, left)};
      begun_ += part.count;
      const auto step = std::make_shared<Step>(fetch_, part);
      steps_.push_back({.step = step});
      return [this, step] {
        step->fill(
            {.read = [self = shared_from_this()](Step::ToRead one) { self->read(std::move(one)); },
             .filled = [self = shared_from_this(), at = step.get()] { self->filled(*at); }});
      };
    }
    // Last, because blocks of all steps may lie together in a store.
    if (!to_read_.empty()) {
      return [this, together = std::exchange(to_read_, {})]() mutable {
        fetch_->sources.empty() ? read_from_store(std::move(together)) : read_from_others(together);
      };
    }
    going_on_ = false;
    if (!steps_.empty() || std::exchange(has_ended_, true)) return {};
    return [this] { finish(); };
  }

  void read(Step::ToRead one) {
    {
      MutexLock lock(mutex_);
      to_read_.push_back(std::move(one));
    }
    go_on();
  }

  using Together = std::vector<Step::ToRead>;
  void read_from_store(Together together) {
    std::vector<RemoteStore::Read> reads;
    for (const Step::ToRead& one : together) reads.push_back(one.step->begin_read(one.item));
    fetch_->context->store.read(std::move(reads),
                                [together = std::move(together)](
                                    std::size_t at, const RemoteStore::ReadResult& size_bytes) {
                                  together[at].step->have_value(together[at].item, size_bytes);
                                });
  }

  // A request to a server is for one step, so that each step can be committed early.
  void read_from_others(const Together& together) {
    for (std::size_t i = 0; i < together.size();) {
      const std::shared_ptr<Step>& step = together[i].step;
      std::vector<std::size_t> items;
      for (; i < together.size() && together[i].step == step; ++i)
        items.push_back(together[i].item);
      step->read_from_others(std::move(items));
    }
  }

  void filled(const Step& step) {
    {
      MutexLock lock(mutex_);
      const auto at =
          std::ranges::find(steps_, &step, [](const UnderWay& one) { return one.step.get(); });
      at->is_filled = true;
    }
    go_on();
  }

  void committed(const Step::Committed& committed) {
    if (committed.blocks > 0) {
      fetch_->context->counters.fetched_blocks += committed.blocks;
      fetch_->context->counters.fetched_bytes += committed.bytes;
      transfers_.add(id_,
                     TransferTable::Arrived{.blocks = committed.blocks, .bytes = committed.bytes});
    }
    std::shared_ptr<Step> last;
    {
      MutexLock lock(mutex_);
      committing_ = false;
      last = std::exchange(committed_, steps_.front().step);
      steps_.pop_front();
      arrived_ += committed.blocks;
      if (!error_) error_ = committed.error;
    }
    if (last) last->give_up();
    go_on();
  }

  void finish() {
    std::shared_ptr<Step> last;
    std::size_t arrived = 0;
    std::optional<Error> error;
    {
      MutexLock lock(mutex_);
      arrived = arrived_;
      error = error_;
      last = std::move(committed_);
    }
    if (last) last->give_up();
    if (error) {
      transfers_.add(id_, TransferStatus::Failure{fetch_->keys[arrived], *error});
      transfers_.set_error(id_, *error);
    }
    fetch_->ended(arrived);
    transfers_.end(id_, error ? TransferState::failed : TransferState::done);
  }

  Cache& cache() const { return *fetch_->context->cache; }

  const std::shared_ptr<RemoteFetch> fetch_;
  TransferTable& transfers_;
  const TransferId id_;
  Mutex mutex_;
  std::deque<UnderWay> steps_ CAIRN_GUARDED_BY(mutex_);  // the first is committed next
  // The last committed step. Its blocks stay held until the next commit, so that later blocks do
  // not evict their own prefix.
  std::shared_ptr<Step> committed_ CAIRN_GUARDED_BY(mutex_);
  std::vector<Step::ToRead> to_read_ CAIRN_GUARDED_BY(mutex_);
  std::size_t begun_ CAIRN_GUARDED_BY(mutex_) = 0;    // keys
  std::size_t arrived_ CAIRN_GUARDED_BY(mutex_) = 0;  // leading keys
  bool going_on_ CAIRN_GUARDED_BY(mutex_) = false;
  bool committing_ CAIRN_GUARDED_BY(mutex_) = false;
  bool has_ended_ CAIRN_GUARDED_BY(mutex_) = false;
  std::optional<Error> error_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace

Result<TransferId> RemoteFetches::start(RemoteFetch fetch) {
  const std::shared_ptr<CacheCore> core = fetch.context->cache->core();
  TransferTable& transfers = core->services->transfers;
  auto id = core->open_transfer(fetch.keys.size());
  if (!id) return id;
  transfers.begin(*id);
  std::make_shared<Fetching>(std::move(fetch), transfers, *id)->go_on();
  return id;
}

}  // namespace cairn
