#include "blockmgr/remote_tier/remote_holders.hpp"

#include <algorithm>
#include <utility>

#include "base/hash.hpp"
#include "base/hex.hpp"
#include "blockmgr/remote_tier/remote_holder.hpp"

namespace cairn {
namespace {

// Default lifetime of an announcement. A dead server is trusted for this long.
constexpr std::chrono::milliseconds kLifetime{600'000};
// Walks per lifetime: two of them may fail.
constexpr int kWalksPerLifetime = 3;
// The first walk, which announces blocks found on disk at the start.
constexpr std::chrono::milliseconds kFirstWalk{5'000};
// Blocks per call, and calls in progress. A block takes about 100 bytes on the wire.
constexpr std::size_t kBatch = 512;
constexpr std::uint32_t kMaxBatches = 8;
// Changed keys waiting to be announced, 100 bytes each. The next walk announces the others; those
// of removed blocks expire.
constexpr std::size_t kMaxChanged = 65'536;

std::string own_text(const RemoteContext& context) {
  const RemoteAddress& self = context.own_address;
  return RemoteHolder{.url = self.url,
                      .cache = context.cache->config().name,
                      .host = self.host,
                      .unix_path = self.unix_path}
      .text();
}

}  // namespace

RemoteHolders::RemoteHolders(std::shared_ptr<RemoteContext> context, const Clock& clock)
    : context_(std::move(context)),
      clock_(clock),
      own_(own_text(*context_)),
      lifetime_(context_->config.ttl_ms == 0 ? kLifetime
                                             : std::chrono::milliseconds(context_->config.ttl_ms)),
      only_used_again_(context_->config.write == RemoteTierConfig::Write::second_use),
      random_(std::random_device{}()),
      walk_began_(clock.now()),
      walk_takes_(std::min(kFirstWalk, lifetime_ / kWalksPerLifetime)) {}

void RemoteHolders::find(Find find,
                         UniqueFunction<void(std::vector<std::optional<BlockSources>>)> done) {
  RemoteStore::FindHolders asked{.names = {}, .within = find.within};
  for (const BlockKey& key : find.keys) asked.names.push_back(context_->name_of(key));
  context_->store.find_holders(
      std::move(asked),
      [self = shared_from_this(), done = std::move(done)](
          const std::vector<std::optional<RemoteStore::Holders>>& announced) mutable {
        std::vector<std::optional<BlockSources>> found(announced.size());
        for (std::size_t i = 0; i < announced.size(); ++i) {
          if (announced[i]) found[i] = self->sources_of(*announced[i]);
        }
        done(std::move(found));
      });
}

// Holders that have the block in memory come first.
BlockSources RemoteHolders::sources_of(const std::vector<RemoteStore::Holder>& holders) {
  std::vector<const RemoteStore::Holder*> others;
  for (const RemoteStore::Holder& holder : holders) {
    if (holder.who != own_) others.push_back(&holder);
  }
  {
    MutexLock lock(mutex_);
    std::ranges::shuffle(others, random_);
  }
  std::stable_partition(others.begin(), others.end(), [](const RemoteStore::Holder* holder) {
    return holder->mark < index_of(Tier::disk);
  });
  BlockSources sources;
  for (const RemoteStore::Holder* holder : others) {
    const auto read = RemoteHolder::read(holder->who);
    if (!read) {
      ++context_->counters.wrong[static_cast<std::size_t>(WrongValue::header)];
      continue;
    }
    const bool is_here = !read->unix_path.empty() && read->host == context_->own_address.host;
    if (is_here) {
      sources.push_back({.server = "unix:" + read->unix_path, .cache = read->cache});
    }
    sources.push_back({.server = read->url, .cache = read->cache, .who = holder->who});
  }
  return sources;
}

void RemoteHolders::changed(const BlockKey& key) {
  MutexLock lock(mutex_);
  if (ended_) return;
  if (changed_.size() >= kMaxChanged) {
    ++context_->counters.dropped_full;
    return;
  }
  changed_.push_back(key);
}

void RemoteHolders::is_not_there(const BlockKey& key, const BlockSource& source) {
  if (source.who.empty()) return;
  context_->store.withdraw({.names = {context_->name_of(key)}, .who = source.who});
}

void RemoteHolders::look() {
  announce_changed();
  walk();
}

bool RemoteHolders::may_announce() const {
  MutexLock lock(mutex_);
  return !ended_ && batches_ < kMaxBatches;
}

void RemoteHolders::announce_changed() {
  while (may_announce()) {
    std::vector<BlockKey> keys;
    {
      MutexLock lock(mutex_);
      const std::size_t count = std::min(changed_.size(), kBatch);
      const auto end = changed_.begin() + static_cast<std::ptrdiff_t>(count);
      keys.assign(changed_.begin(), end);
      changed_.erase(changed_.begin(), end);
    }
    if (keys.empty()) return;
    const std::vector<KeyView> views(keys.begin(), keys.end());
    const auto tiers = context_->cache->highest_tiers(views, only_used_again_);
    std::vector<RemoteStore::Announce::Block> there;
    std::vector<std::string> gone;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      std::string name = context_->name_of(keys[i]);
      if (tiers[i]) {
        there.push_back({.name = std::move(name), .mark = static_cast<std::uint8_t>(*tiers[i])});
      } else {
        gone.push_back(std::move(name));
      }
    }
    if (!gone.empty()) {
      context_->counters.withdrawn += gone.size();
      context_->store.withdraw({.names = std::move(gone), .who = own_});
    }
    announce(std::move(there));
  }
}

// Paced so that a walk ends in time.
void RemoteHolders::walk() {
  const TimePoint now = clock_.now();
  const double part = std::min(1.0, std::chrono::duration<double>(now - walk_began_) /
                                        std::chrono::duration<double>(walk_takes_));
  const std::uint64_t end = context_->cache->held({.cursor = cursor_, .limit = 0}).end;
  const auto until = static_cast<std::uint64_t>(part * static_cast<double>(end));
  while (cursor_ < until && may_announce()) {
    const HeldBlocks held =
        context_->cache->held({.cursor = cursor_,
                               .limit = std::min<std::uint64_t>(kBatch, until - cursor_),
                               .only_used_again = only_used_again_});
    cursor_ = held.next_cursor;
    std::vector<RemoteStore::Announce::Block> blocks;
    for (const HeldBlocks::Block& block : held.blocks) {
      blocks.push_back(
          {.name = context_->name_of(block.key), .mark = static_cast<std::uint8_t>(block.tier)});
    }
    announce(std::move(blocks));
    if (cursor_ >= held.end) break;
  }
  if (part < 1.0) return;
  cursor_ = 0;
  walk_began_ = now;
  walk_takes_ = lifetime_ / kWalksPerLifetime;
}

void RemoteHolders::announce(std::vector<RemoteStore::Announce::Block> blocks) {
  if (blocks.empty()) return;
  {
    MutexLock lock(mutex_);
    ++batches_;
  }
  context_->under_way.enter();
  const std::size_t count = blocks.size();
  context_->store.announce({.blocks = std::move(blocks),
                            .who = own_,
                            .ttl_ms = static_cast<std::uint64_t>(lifetime_.count())},
                           [self = shared_from_this(), count](std::size_t announced) {
                             self->context_->counters.announced += announced;
                             self->context_->counters.dropped_failed += count - announced;
                             {
                               MutexLock lock(self->mutex_);
                               --self->batches_;
                             }
                             self->context_->under_way.leave();
                           });
}

void RemoteHolders::end() {
  MutexLock lock(mutex_);
  ended_ = true;
  changed_.clear();
}

std::uint64_t RemoteHolders::waiting() const {
  MutexLock lock(mutex_);
  return changed_.size();
}

}  // namespace cairn
