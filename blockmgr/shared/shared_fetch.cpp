#include "blockmgr/shared/shared_fetch.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <utility>

#include "base/hex.hpp"
#include "base/mutex.hpp"
#include "base/pieces.hpp"
#include "blockmgr/cache/cache_core.hpp"
#include "blockmgr/shared/shared_source_read.hpp"

namespace cairn {
namespace {

// Slots that are allocated, filled and committed together, and how many such steps are under way:
// while one is checked and committed the others keep a node's connections busy. All of it is few
// enough that a cache has it free.
constexpr std::uint64_t kStepBytes = 4ull << 20;
constexpr std::uint64_t kMaxStep = 16;
constexpr std::size_t kMaxSteps = 4;

Error wrong(const BlockKey& key, WrongValue why) {
  return {ErrorCode::checksum_mismatch, "what the shared tier gave for key " +
                                            to_hex(key.view().bytes()) +
                                            " is not it: " + std::string(to_string(why))};
}

// Some keys that follow each other, from their slots to their commit.
class Step : public std::enable_shared_from_this<Step> {
 public:
  struct Part {
    std::size_t first = 0;  // of the keys
    std::size_t count = 0;
  };
  Step(std::shared_ptr<SharedFetch> fetch, Part part)
      : fetch_(std::move(fetch)), first_(part.first), items_(part.count), left_(part.count) {}

  // `filled` is told once, when no more bytes come.
  void fill(std::uint32_t lease_ms, UniqueFunction<void()> filled) {
    filled_ = std::move(filled);
    cache().allocate({.count = static_cast<std::uint32_t>(items_.size()),
                      .tier = fetch_->to,
                      .lease_ms = lease_ms,
                      .quota = fetch_->quota},
                     [self = shared_from_this()](Result<Allocation> slots) {
                       self->allocated(std::move(slots));
                     });
  }

  // The prefix that has come. Told is how many blocks that are; fewer than all have an error.
  struct Committed {
    std::size_t blocks = 0;
    std::optional<Error> error = {};
  };
  void commit(UniqueFunction<void(Committed)> done) {
    const auto failed = std::ranges::find_if(items_, [](const Item& item) { return !!item.error; });
    if (failed != items_.end()) error_ = failed->error;
    std::vector<CommitBlock> blocks;
    for (auto item = items_.begin(); item != failed && !slots_.blocks.empty(); ++item) {
      const auto i = static_cast<std::size_t>(item - items_.begin());
      blocks.push_back({.handle = slots_.blocks[i],
                        .key = key_of(i),
                        .parent = item->block.parent,
                        .epoch = item->block.epoch});
    }
    for (Item& item : items_) item.writer.reset();
    if (blocks.empty()) {
      give_up();
      return done({.error = error_});
    }
    const std::size_t count = blocks.size();
    cache().commit(slots_.lease, std::move(blocks),
                   [self = shared_from_this(), count, done = std::move(done)](
                       const Result<std::vector<CommitStatus>>& statuses) mutable {
                     if (statuses) return done({.blocks = count, .error = self->error_});
                     self->give_up();
                     done({.error = statuses.error()});
                   });
  }
  // Lets the slots go: what was not committed is nobody's.
  void give_up() {
    items_.clear();
    if (slots_.blocks.empty()) return;
    static_cast<void>(cache().release(slots_.lease));
    slots_.blocks.clear();
  }

 private:
  struct Item {
    std::optional<BlockWriter> writer;
    SharedHeader header{};
    std::vector<iovec> room;
    SharedBlock block;
    std::optional<Error> error;
  };

  Cache& cache() const { return *fetch_->context->cache; }
  const BlockKey& key_of(std::size_t item) const { return fetch_->keys[first_ + item]; }

  void allocated(Result<Allocation> slots) {
    if (!slots) {
      error_ = std::move(slots).error();
      return filled_();
    }
    slots_ = std::move(*slots);
    {
      MutexLock lock(mutex_);
      has_room_.emplace();
    }
    for (std::size_t i = 0; i < items_.size(); ++i) write(i);
    std::vector<std::size_t> together;
    {
      MutexLock lock(mutex_);
      together = std::move(*has_room_);
      has_room_.reset();
    }
    // Those that wait for room are read when they have it: it may come from the others' staging.
    if (!together.empty()) read_from_others(together);
  }

  void write(std::size_t i) {
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
    if (!fetch_->sources.empty()) {
      {
        MutexLock lock(mutex_);
        if (has_room_) has_room_->push_back(i);
        if (has_room_) return;
      }
      return read_from_others({i});
    }
    SharedContext& context = *fetch_->context;
    context.store.read(
        {.name = context.name_of(key_of(i)), .into = memory_of_value(items_[i])},
        [self = shared_from_this(), i](const Result<bool>& there) { self->have_value(i, there); });
  }

  static iovec memory_of_header(Item& item) { return {item.header.data(), item.header.size()}; }
  static std::vector<iovec> memory_of_value(Item& item) {
    std::vector<iovec> into{memory_of_header(item)};
    into.insert(into.end(), item.room.begin(), item.room.end());
    return into;
  }
  // Another server makes the checksum while it sends.
  static std::vector<iovec> memory_of_answer(Item& item) {
    std::vector<iovec> into = item.room;
    into.push_back(memory_of_header(item));
    return into;
  }

  void have_value(std::size_t i, const Result<bool>& there) {
    SharedContext& context = *fetch_->context;
    if (there && !*there) {
      ++context.counters.absent;
      context.events.removed(key_of(i));
      return end_item(i, absent_from_tier(key_of(i)));
    }
    if (!there && there.error().code != ErrorCode::wrong_length) {
      return end_item(i, there.error());
    }
    if (const auto why = look_at(i, there)) {
      context.store.erase(context.name_of(key_of(i)));
      context.events.removed(key_of(i));
      return end_item(i, wrong(key_of(i), *why));
    }
    finish_item(i);
  }

  void read_from_others(const std::vector<std::size_t>& together) {
    SourceRead read{.context = fetch_->context};
    for (const std::size_t i : together) {
      read.blocks.push_back({.key = key_of(i),
                             .sources = &fetch_->sources[first_ + i],
                             .into = memory_of_answer(items_[i])});
    }
    read.look = [self = shared_from_this(), together](std::size_t at, const Result<bool>& there) {
      const auto why = self->look_at(together[at], there);
      return why ? Result<>(wrong(self->key_of(together[at]), *why)) : Result<>();
    };
    read.is_not_there = [self = shared_from_this(), together](std::size_t at,
                                                              const BlockSource& source) {
      self->fetch_->is_not_there(self->key_of(together[at]), source);
    };
    read.ended = [self = shared_from_this(), together](std::size_t at, const Result<>& result) {
      if (result) return self->finish_item(together[at]);
      self->end_item(together[at], result.error());
    };
    start_source_read(std::move(read));
  }

  // Why what has been read is not the block; counted.
  std::optional<WrongValue> look_at(std::size_t i, const Result<bool>& there) {
    Item& item = items_[i];
    SharedContext& context = *fetch_->context;
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
    if (--left_ == 0) filled_();
  }

  const std::shared_ptr<SharedFetch> fetch_;
  const std::size_t first_;
  std::vector<Item> items_;
  std::atomic<std::size_t> left_;
  Mutex mutex_;
  // While all of them are being given room: those that have it, to be read together.
  std::optional<std::vector<std::size_t>> has_room_ CAIRN_GUARDED_BY(mutex_);
  Allocation slots_;
  std::optional<Error> error_;
  UniqueFunction<void()> filled_;
};

// Steps that are filled at once and committed one after the other.
class Fetching : public std::enable_shared_from_this<Fetching> {
 public:
  Fetching(SharedFetch fetch, TransferTable& transfers, std::uint32_t lease_ms, TransferId id)
      : fetch_(std::make_shared<SharedFetch>(std::move(fetch))),
        transfers_(transfers),
        lease_ms_(lease_ms),
        id_(id) {
    fetch_->context->under_way.enter();
  }
  ~Fetching() { fetch_->context->under_way.leave(); }

  // Does what can be done. Called after each change; a call in another one leaves it to that.
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
      const std::uint64_t most =
          std::clamp<std::uint64_t>(kStepBytes / cache().block_bytes(), 1, kMaxStep);
      const Step::Part part{.first = begun_, .count = std::min<std::size_t>(most, left)};
      begun_ += part.count;
      const auto step = std::make_shared<Step>(fetch_, part);
      steps_.push_back({.step = step});
      return [this, step] {
        step->fill(lease_ms_, [self = shared_from_this(), at = step.get()] { self->filled(*at); });
      };
    }
    going_on_ = false;
    if (!steps_.empty() || std::exchange(has_ended_, true)) return {};
    return [this] { finish(); };
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
    const std::uint64_t bytes = committed.blocks * cache().block_bytes();
    if (committed.blocks > 0) {
      fetch_->context->counters.fetched_blocks += committed.blocks;
      fetch_->context->counters.fetched_bytes += bytes;
      transfers_.add(id_, TransferTable::Arrived{.blocks = committed.blocks, .bytes = bytes});
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

  const std::shared_ptr<SharedFetch> fetch_;
  TransferTable& transfers_;
  const std::uint32_t lease_ms_;
  const TransferId id_;
  Mutex mutex_;
  std::deque<UnderWay> steps_ CAIRN_GUARDED_BY(mutex_);  // the first is committed next
  // The last step that was. It is held until the next one is: what comes later makes no room in the
  // place of what it follows.
  std::shared_ptr<Step> committed_ CAIRN_GUARDED_BY(mutex_);
  std::size_t begun_ CAIRN_GUARDED_BY(mutex_) = 0;    // of the keys
  std::size_t arrived_ CAIRN_GUARDED_BY(mutex_) = 0;  // of the keys, from the first on
  bool going_on_ CAIRN_GUARDED_BY(mutex_) = false;
  bool committing_ CAIRN_GUARDED_BY(mutex_) = false;
  bool has_ended_ CAIRN_GUARDED_BY(mutex_) = false;
  std::optional<Error> error_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace

Result<TransferId> SharedFetches::start(SharedFetch fetch) {
  const std::shared_ptr<CacheCore> core = fetch.context->cache->core();
  TransferTable& transfers = core->services->transfers;
  auto id = transfers.open(core, fetch.keys.size());
  if (!id) return id;
  transfers.begin(*id);
  std::make_shared<Fetching>(std::move(fetch), transfers, core->options().max_lease_ms, *id)
      ->go_on();
  return id;
}

}  // namespace cairn
