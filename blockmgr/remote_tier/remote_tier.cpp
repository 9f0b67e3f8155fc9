#include "blockmgr/remote_tier/remote_tier.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/hex.hpp"
#include "blockmgr/core/cache_core.hpp"
#include "blockmgr/index/group_search.hpp"
#include "blockmgr/remote_tier/remote_fetch.hpp"
#include "blockmgr/remote_tier/remote_upload.hpp"

namespace cairn {
namespace {

// Keys of one question: one round trip of about 40 kB.
constexpr std::size_t kAskedAtOnce = 512;
// Keys of one look-up, if the store has them all and answers in time: a million tokens in blocks of
// 16.
constexpr std::size_t kMaxLookAhead = 65'536;
// How long a question may take, at least, if no prefill waits for it.
constexpr std::chrono::milliseconds kAskDeadline{50};
// Names of one question about several KV groups, which need several blocks a key: about 250 kB, and
// 700 kB for a caller that waits. More would keep the store's thread from others for too long.
constexpr std::size_t kMaxGroupNames = 3'072;
constexpr std::size_t kMaxPatientNames = 8'192;
// How long the store is not asked again about an absent key.
constexpr std::chrono::milliseconds kAbsentFor{500};
// The same for a key whose answer was late: the store may only have been busy.
constexpr std::chrono::milliseconds kSparedFor{50};
constexpr std::size_t kMaxAbsent = 16'384;  // 24 bytes each
// Names known to be in the store, in each half: 24 bytes each. A forgotten name is only asked about
// again.
constexpr std::size_t kMaxKnown = 65'536;
// Blocks waiting to be stored, 160 bytes each. Further blocks are not stored.
constexpr std::size_t kMaxWaiting = 8'192;
// How long a block that was just fetched or stored is not touched again.
constexpr std::chrono::seconds kJustTouched{1};
// Touches per match.
constexpr std::size_t kMaxTouches = 512;

}  // namespace

RemoteTier::RemoteTier(const std::shared_ptr<Cache>& cache, const Services& services)
    : context_(std::make_shared<RemoteContext>(cache, services.beyond,
                                               events_of(*cache, services.tells_events))),
      far_(services.far),
      clock_(services.clock),
      options_(services.options) {}

RemoteEvents RemoteTier::events_of(const Cache& cache, bool tells_events) {
  CacheServices& services = *cache.core()->services;
  if (!tells_events) return {EventSink{}, services.clock};
  return {EventSink{.ring = &services.events, .cache = cache.core()->number}, services.clock};
}

void RemoteTier::begin() {
  if (far_) far_->begin();
  if (context_->config.placement == RemoteTierConfig::Placement::holders) {
    holders_ = std::make_shared<RemoteHolders>(context_, clock_);
  }
  if (context_->config.write != RemoteTierConfig::Write::on_evict) return;
  const std::weak_ptr<RemoteTier> weak = weak_from_this();
  evictions_ = std::make_shared<EvictionUploads>(
      context_,
      EvictionUploads::Options{.clock = clock_,
                               .wait_at_most = options_.evict_wait,
                               .ended = [weak](const BlockKey& key, const Result<>& result) {
                                 if (const auto self = weak.lock()) self->departed(key, result);
                               }});
  context_->cache->set_evict_to_remote(
      {.taker = [evictions = evictions_](
                    std::vector<LeavingBlock> blocks) { evictions->take(std::move(blocks)); },
       .wait_at_most = options_.evict_wait});
}

Tier RemoteTier::default_tier() const { return default_tier_of(*context_->cache); }

bool RemoteTier::begin_probe(KeyView first) {
  MutexLock lock(mutex_);
  if (ended_) return false;
  const auto absent = absent_.find(plain_hash(first));
  if (absent != absent_.end() && clock_.now() < absent->second) {
    ++context_->counters.probes_spared;
    return false;
  }
  // The store must outlive its pending calls.
  context_->under_way.enter();
  ++context_->counters.probes;
  return true;
}

// Keys that the store is asked about, part by part. Holds context_->under_way.
struct RemoteTier::Lookup {
  std::vector<BlockKey> keys;
  TimePoint until = TimePoint::max();
  bool ends_at_miss = true;
  UniqueFunction<void(Found)> done;  // runs once, with what the store said
  Found found = {};

  std::size_t answered() const { return found.there.size(); }
  // An answer of the store or the holders about the next keys.
  bool goes_on_after(std::span<const RemoteStore::Presence> part) {
    using Presence = RemoteStore::Presence;
    found.there.insert(found.there.end(), part.begin(), part.end());
    return ends_at_miss
               ? std::ranges::all_of(part, is_there)
               : !std::ranges::all_of(part, [](Presence p) { return p == Presence::unknown; });
  }
};

std::chrono::microseconds RemoteTier::longest_question() const {
  return std::max<std::chrono::microseconds>(kAskDeadline, options_.match_deadline);
}

void RemoteTier::look_up(const std::shared_ptr<Lookup>& lookup) {
  const std::size_t first = lookup->answered();
  const std::size_t count = std::min(lookup->keys.size() - first, kAskedAtOnce);
  const auto left = std::chrono::ceil<std::chrono::microseconds>(lookup->until - clock_.now());
  const auto within = std::min(left, longest_question());
  bool asks = count > 0 && (first == 0 || within.count() > 0);
  if (asks) {
    MutexLock lock(mutex_);
    asks = !ended_;
  }
  if (!asks) {
    lookup->keys.resize(first);
    lookup->found.keys = std::move(lookup->keys);
    lookup->done(std::move(lookup->found));
    return context_->under_way.leave();
  }
  auto answered = [self = shared_from_this(), lookup](std::span<const RemoteStore::Presence> part) {
    if (!lookup->goes_on_after(part)) lookup->keys.resize(lookup->answered());
    self->look_up(lookup);
  };
  const auto part = std::span(lookup->keys).subspan(first, count);
  if (holders_) {
    return holders_->find(
        {.keys = {part.begin(), part.end()}, .within = within},
        [lookup, answered](std::vector<std::optional<BlockSources>> sources) {
          std::vector<RemoteStore::Presence> there;
          for (auto& one : sources) {
            there.push_back(!one           ? RemoteStore::Presence::unknown
                            : one->empty() ? RemoteStore::Presence::absent
                                           : RemoteStore::Presence::present);
            lookup->found.sources.push_back(one ? std::move(*one) : BlockSources());
          }
          answered(there);
        });
  }
  RemoteStore::Probe probe{.names = {}, .within = within};
  for (const BlockKey& key : part) probe.names.push_back(context_->name_of(key));
  context_->store.probe(std::move(probe), answered);
}

void RemoteTier::probe_remote(const Look& look, UniqueFunction<void(Beyond)> done) {
  if (look.keys.empty() || !begin_probe(look.keys.front())) return done({});
  const auto first = look.keys.first(std::min(look.keys.size(), kMaxLookAhead));
  Look without_keys = look;
  without_keys.keys = {};
  const auto waits = std::max<std::chrono::microseconds>(options_.match_deadline, look.patience);
  look_up(std::make_shared<Lookup>(Lookup{
      .keys = {first.begin(), first.end()},
      .until = clock_.now() + waits,
      .done = [self = shared_from_this(), without_keys, done = std::move(done)](
                  Found found) mutable { self->looked(std::move(found), without_keys, done); }}));
}

void RemoteTier::ask(std::vector<BlockKey> keys, UniqueFunction<void(std::vector<bool>)> done) {
  const std::size_t count = keys.size();
  {
    MutexLock lock(mutex_);
    if (ended_) return done(std::vector<bool>(count));
    context_->under_way.enter();
  }
  look_up(std::make_shared<Lookup>(
      Lookup{.keys = std::move(keys),
             .ends_at_miss = false,
             .done = [count, done = std::move(done)](const Found& found) mutable {
               std::vector<bool> there;
               for (const auto presence : found.there) there.push_back(is_there(presence));
               there.resize(count);
               done(std::move(there));
             }}));
}

void RemoteTier::looked(Found found, const Look& look, UniqueFunction<void(Beyond)>& done) {
  const auto& there = found.there;
  const auto miss = std::ranges::find_if_not(there, is_there);
  const auto count = static_cast<std::size_t>(miss - there.begin());
  if (miss != there.end()) {
    const bool is_absent = *miss == RemoteStore::Presence::absent;
    if (!is_absent) ++context_->counters.probes_late;
    MutexLock lock(mutex_);
    const std::uint64_t hash = plain_hash(found.keys[count]);
    // If only the later answers were late, the next match asks for them. If all were late, the
    // store is spared.
    if (is_absent || count == 0) spare(hash, is_absent ? kAbsentFor : kSparedFor);
    // A block that was stored once and is gone must be stored again when it is recomputed. This
    // also holds behind the first missing key: a store evicts single blocks of a prefix.
    for (std::size_t i = count; i < there.size(); ++i) {
      if (there[i] != RemoteStore::Presence::absent) continue;
      if (forget(plain_hash(found.keys[i]))) context_->events.removed(found.keys[i]);
    }
  }
  Beyond beyond{.blocks = count};
  if (count > 0) {
    found.keys.resize(count);
    const std::vector<bool> here = are_here(found.keys);
    beyond.here = static_cast<std::uint64_t>(std::ranges::find(here, false) - here.begin());
    if (look.fetches) beyond.transfers = fetch(std::move(found), here, look);
  }
  done(std::move(beyond));
}

// What the cache and the store can serve together.
struct RemoteTier::GroupsFound {
  std::uint32_t matched = 0;  // keys
  Found in_store = {};        // the blocks that these keys need from the store
};

// A look-up for several KV groups, from its question to its answer.
struct RemoteTier::GroupProbe {
  using Place = std::pair<KvGroupNumber, std::uint32_t>;  // group and key

  // The longest prefix of the first `num_keys` keys.
  GroupsFound search(const CacheConfig& config, std::size_t num_keys) const {
    GroupSearch search({.config = config, .num_keys = num_keys, .have = look.have});
    const auto searched = search.run([&](GroupSearch::Block block) -> Result<bool> {
      const Place at(block.kv_group, block.key);
      // The match has found the full groups' blocks before `matched`.
      const bool was_found =
          block.key < look.matched && config.kind_of(block.kv_group) == KvGroupKind::full;
      return was_found || here.contains(at) || in_store.contains(at);
    });
    CAIRN_ASSERT(searched.has_value(), "a search in memory fails");
    GroupsFound found{.matched = search.matched()};
    if (found.matched <= look.matched) return found;
    for (const GroupSearch::Block& block : search.needed()) {
      const auto at = in_store.find({block.kv_group, block.key});
      if (at == in_store.end()) continue;
      found.in_store.keys.emplace_back(keys[block.key].view().in(block.kv_group));
      found.in_store.there.push_back(at->second);
    }
    return found;
  }

  std::vector<BlockKey> keys;
  GroupLook look;               // without its keys
  std::vector<BlockKey> asked;  // those that are not here
  std::set<Place> here;
  std::vector<GroupSearch::Block> blocks;  // of `asked`
  std::map<Place, RemoteStore::Presence> in_store = {};
};

// The keys of a prompt that one question to the store is about.
struct RemoteTier::GroupReach {
  std::size_t num_keys = 0;  // from the first on
  // Windows and states are asked for from this key on. Engines store them where a prompt ended, and
  // the next one mostly goes on a little behind that.
  std::uint64_t tail = 0;

  static GroupReach of(const CacheConfig& config, const GroupLook& look) {
    const std::size_t most = look.patience.count() > 0 ? kMaxPatientNames : kMaxGroupNames;
    const std::size_t groups = config.kv_group_count();
    const std::size_t beyond = look.keys.size() - look.matched;
    if (beyond * groups <= most) return {.num_keys = look.keys.size(), .tail = look.matched};
    std::size_t full = 0;
    for (KvGroupNumber group = 0; group < groups; ++group) {
      if (config.kind_of(group) == KvGroupKind::full) ++full;
    }
    if (full == groups) return {.num_keys = look.matched + most / full, .tail = look.matched};
    // The other groups have at least a third of the names.
    const std::size_t asked = std::min(beyond, most * 2 / 3 / std::max<std::size_t>(full, 1));
    const std::size_t in_tail = std::min(asked, (most - asked * full) / (groups - full));
    return {.num_keys = look.matched + asked, .tail = look.matched + asked - in_tail};
  }
};

void RemoteTier::probe_groups(const GroupLook& look, UniqueFunction<void(Beyond)> done) {
  if (look.keys.size() == look.matched || !begin_probe(look.keys[look.matched])) return done({});
  const CacheConfig& config = context_->cache->config();
  const auto [num_keys, tail] = GroupReach::of(config, look);
  auto probe = std::make_shared<GroupProbe>();
  probe->look = look;
  probe->look.keys = {};
  for (const KeyView& key : look.keys.first(num_keys)) probe->keys.emplace_back(key);

  // The blocks that a prefix longer than `matched` may need.
  const GroupSearch search({.config = config, .num_keys = num_keys});
  std::vector<GroupSearch::Block> blocks;
  std::vector<BlockKey> names;
  for (KvGroupNumber group = 0; group < search.groups(); ++group) {
    std::uint64_t first = config.kind_of(group) == KvGroupKind::full ? look.matched : tail;
    if (config.kind_of(group) == KvGroupKind::window) {
      first = search.first_run_of_window(group, first + 1) * search.keys_per_block(group);
    }
    for (std::uint64_t key = first; key < num_keys; ++key) {
      blocks.push_back({.key = static_cast<std::uint32_t>(key), .kv_group = group});
      names.emplace_back(look.keys[key].in(group));
    }
  }
  const std::vector<bool> here = are_here(names);
  const auto waits = std::max<std::chrono::microseconds>(options_.match_deadline, look.patience);
  RemoteStore::Probe asked{.names = {}, .within = std::min(waits, longest_question())};
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (here[i]) {
      probe->here.emplace(blocks[i].kv_group, blocks[i].key);
      continue;
    }
    asked.names.push_back(context_->name_of(names[i]));
    probe->blocks.push_back(blocks[i]);
    probe->asked.push_back(std::move(names[i]));
  }
  context_->store.probe(std::move(asked),
                        [self = shared_from_this(), probe,
                         done = std::move(done)](std::vector<RemoteStore::Presence> there) mutable {
                          done(self->groups_looked(*probe, there));
                          self->context_->under_way.leave();
                        });
}

RemoteTier::Beyond RemoteTier::groups_looked(GroupProbe& probe,
                                             std::span<const RemoteStore::Presence> there) {
  using Presence = RemoteStore::Presence;
  const CacheConfig& config = context_->cache->config();
  bool any_late = false;
  for (std::size_t i = 0; i < there.size(); ++i) {
    any_late |= there[i] == Presence::unknown;
    if (is_there(there[i])) {
      probe.in_store.emplace(std::pair(probe.blocks[i].kv_group, probe.blocks[i].key), there[i]);
    }
  }
  if (any_late) ++context_->counters.probes_late;
  GroupsFound found = probe.search(config, probe.keys.size());
  {
    MutexLock lock(mutex_);
    for (std::size_t i = 0; i < there.size(); ++i) {
      if (there[i] != Presence::absent || !forget(plain_hash(probe.asked[i]))) continue;
      context_->events.removed(probe.asked[i]);
    }
    if (found.matched <= probe.look.matched) {
      spare(plain_hash(probe.keys[probe.look.matched]), any_late ? kSparedFor : kAbsentFor);
      return {};
    }
  }
  Beyond beyond{.blocks = found.matched - probe.look.matched};
  if (found.in_store.keys.empty()) {
    beyond.here = beyond.blocks;
    return beyond;
  }
  while (probe.look.make_room && !found.in_store.keys.empty()) {
    const std::size_t wanted = found.in_store.keys.size();
    const std::size_t room = probe.look.make_room(found.in_store.keys);
    if (room >= wanted) break;
    const std::uint64_t length = found.matched - probe.look.matched;
    found = probe.search(config, probe.look.matched + std::min(length - 1, length * room / wanted));
  }
  if (found.in_store.keys.empty()) return beyond;
  const std::vector<bool> here = are_here(found.in_store.keys);
  const bool fetches = probe.look.fetches;
  const Look look{.keys = {}, .to = probe.look.to, .quota = probe.look.quota, .fetches = fetches};
  if (fetches) beyond.transfers = fetch(std::move(found.in_store), here, look);
  if (fetches && beyond.transfers.empty()) beyond.here = beyond.blocks;
  return beyond;
}

std::vector<bool> RemoteTier::are_here(std::span<const BlockKey> keys) const {
  const std::vector<KeyView> views(keys.begin(), keys.end());
  return context_->cache->contains(views);
}

void RemoteTier::spare(std::uint64_t hash, std::chrono::milliseconds for_so_long) {
  if (absent_.size() >= kMaxAbsent) absent_.clear();
  absent_[hash] = clock_.now() + for_so_long;
}

std::vector<TransferId> RemoteTier::fetch(Found found, const std::vector<bool>& here,
                                          const Look& look) {
  const std::vector<BlockKey>& keys = found.keys;
  std::vector<BlockKey> wanted;
  std::vector<BlockSources> sources;
  std::vector<TransferId> transfers;
  {
    MutexLock lock(mutex_);
    if (ended_) return {};
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::uint64_t hash = plain_hash(keys[i]);
      const bool is_far = found.there[i] == RemoteStore::Presence::far;
      // A block that only the far store has goes into the near one once it is here.
      if (!holders_ && !is_far) remember(hash);
      if (is_far && forget(hash)) context_->events.removed(keys[i]);
      if (is_far) far_->note_there(keys[i]);
      if (here[i] || i >= look.most_fetched) continue;
      if (const auto at = fetching_.find(hash); at != fetching_.end()) {
        if (std::ranges::find(transfers, at->second) == transfers.end()) {
          transfers.push_back(at->second);
        }
        continue;
      }
      wanted.push_back(keys[i]);
      if (holders_) sources.push_back(std::move(found.sources[i]));
      fetching_.emplace(hash, TransferId{});
    }
  }
  if (wanted.empty()) return transfers;
  auto id = RemoteFetches::start(
      {.context = context_,
       .keys = wanted,
       .sources = std::move(sources),
       .to = look.to,
       .quota = look.quota,
       .ended = [self = shared_from_this(),
                 wanted](std::size_t arrived) { self->fetched(wanted, arrived); },
       .is_not_there = [holders = holders_](
                           const BlockKey& key,
                           const BlockSource& source) { holders->is_not_there(key, source); }});
  if (!id) {
    fetched(wanted, 0);
    return transfers;
  }
  transfers.push_back(*id);
  MutexLock lock(mutex_);
  for (const BlockKey& key : wanted) {
    // It may have ended already.
    if (const auto at = fetching_.find(plain_hash(key)); at != fetching_.end()) at->second = *id;
  }
  return transfers;
}

void RemoteTier::fetched(const std::vector<BlockKey>& keys, std::size_t arrived) {
  MutexLock lock(mutex_);
  for (const BlockKey& key : keys) fetching_.erase(plain_hash(key));
  // A later match must ask about the first missing block again, though not at once.
  if (arrived == keys.size()) return;
  forget(plain_hash(keys[arrived]));
  spare(plain_hash(keys[arrived]), kAbsentFor);
}

void RemoteTier::note_there(const BlockKey& key) {
  MutexLock lock(mutex_);
  remember(plain_hash(key));
}

void RemoteTier::matched(std::span<const KeyView> keys) {
  if (far_) far_->matched(keys);
  const bool stores = context_->config.write == RemoteTierConfig::Write::second_use;
  if (holders_) {
    if (!stores) return;
    for (const KeyView& key : keys) holders_->changed(BlockKey(key));
    return;
  }
  std::vector<BlockKey> touched;
  std::vector<BlockKey> unknown;
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    const TimePoint now = clock_.now();
    auto interval = options_.touch_interval;
    if (context_->config.ttl_ms > 0) {
      interval = std::min(interval, std::chrono::milliseconds(context_->config.ttl_ms / 4));
    }
    for (const KeyView& key : keys) {
      Known* const at = known(plain_hash(key));
      if (at == nullptr) {
        if (stores) unknown.emplace_back(key);
      } else if (touched.size() < kMaxTouches && at->falls_due(now, interval)) {
        touched.emplace_back(key);
        context_->under_way.enter();
      }
    }
  }
  for (const BlockKey& key : unknown) offer(key, std::nullopt);
  for (const BlockKey& key : touched) touch(key);
}

void RemoteTier::touch(const BlockKey& key) {
  context_->store.touch({.name = context_->name_of(key), .ttl_ms = context_->config.ttl_ms},
                        [self = shared_from_this(), key](const Result<bool>& there) {
                          if (there && !*there) self->store_again(key);
                          self->context_->under_way.leave();
                        });
}

void RemoteTier::store_again(const BlockKey& key) {
  {
    MutexLock lock(mutex_);
    if (forget(plain_hash(key))) context_->events.removed(key);
  }
  if (context_->config.write != RemoteTierConfig::Write::on_evict) offer(key, std::nullopt);
}

std::uint64_t RemoteTier::share(std::span<const BlockKey> keys) {
  if (far_) far_->share(keys);
  if (holders_) {
    // With `second_use` only blocks that were used again are announced.
    context_->cache->count_as_used_again(keys);
    for (const BlockKey& key : keys) holders_->changed(key);
    return keys.size();
  }
  std::uint64_t shared = 0;
  for (const BlockKey& key : keys) shared += offer(key, std::nullopt) ? 1u : 0u;
  return shared;
}

void RemoteTier::stored(const BlockKey& key, const std::optional<BlockKey>& parent) {
  if (far_) far_->stored(key, parent);
  if (holders_) return holders_->changed(key);
  if (context_->config.write == RemoteTierConfig::Write::on_commit) offer(key, parent);
}

void RemoteTier::removed(const BlockKey& key) {
  if (holders_) holders_->changed(key);
}

bool RemoteTier::offer(const BlockKey& key, const std::optional<BlockKey>& parent) {
  bool is_known = false;
  {
    MutexLock lock(mutex_);
    const std::uint64_t hash = plain_hash(key);
    if (ended_) return false;
    if (Known* const at = known(hash); at != nullptr) {
      // It was recomputed because an earlier block was gone from the store. The block itself may be
      // gone too, or soon will be.
      if (!at->falls_due(clock_.now(), kJustTouched)) return true;
      context_->under_way.enter();
      is_known = true;
    } else if (waiting_.size() >= kMaxWaiting) {
      ++context_->counters.dropped_full;
      return false;
    } else {
      remember(hash);
      waiting_.push_back({.key = key, .parent = parent});
    }
  }
  if (is_known) {
    touch(key);
  } else {
    store_next();
  }
  return true;
}

void RemoteTier::store_next() {
  Waiting next;
  {
    MutexLock lock(mutex_);
    if (ended_ || waiting_.empty() || storing_ == context_->max_storing) return;
    next = std::move(waiting_.front());
    waiting_.pop_front();
    ++storing_;
    context_->under_way.enter();
  }
  if (!next.parent) next.parent = context_->cache->parent(next.key);
  start_upload({.context = context_,
                .key = next.key,
                .parent = next.parent,
                .ended = [self = shared_from_this(), key = next.key](const Result<>& result) {
                  self->store_ended(key, result);
                }});
  context_->under_way.leave();
}

void RemoteTier::departed(const BlockKey& key, const Result<>& result) {
  if (!result) {
    const bool was_late = result.error().code == ErrorCode::deadline_exceeded;
    ++(was_late ? context_->counters.dropped_full : context_->counters.dropped_failed);
    return;
  }
  MutexLock lock(mutex_);
  remember(plain_hash(key));
}

void RemoteTier::store_ended(const BlockKey& key, const Result<>& result) {
  {
    MutexLock lock(mutex_);
    --storing_;
    if (!result) forget(plain_hash(key));
  }
  if (!result) ++context_->counters.dropped_failed;
  store_next();
}

void RemoteTier::look() {
  if (far_) far_->look();
  if (evictions_) evictions_->look();
  if (holders_) holders_->look();
}

void RemoteTier::end() {
  if (far_) far_->end();
  {
    MutexLock lock(mutex_);
    ended_ = true;
    waiting_.clear();
  }
  if (holders_) holders_->end();
  if (!evictions_) return;
  context_->cache->set_evict_to_remote({});
  evictions_->end();
}

bool RemoteTier::Known::falls_due(TimePoint now, std::chrono::milliseconds interval) {
  if (now - touched <= interval) return false;
  touched = now;
  return true;
}

RemoteTier::Known* RemoteTier::known(std::uint64_t hash) {
  for (KnownNames& names : known_) {
    if (const auto at = names.find(hash); at != names.end()) return &at->second;
  }
  return nullptr;
}

void RemoteTier::remember(std::uint64_t hash) {
  if (known_[0].size() >= kMaxKnown) {
    known_[1] = std::exchange(known_[0], {});
  }
  known_[0][hash] = {.touched = clock_.now()};
}

bool RemoteTier::forget(std::uint64_t hash) {
  std::size_t forgotten = 0;
  for (KnownNames& names : known_) forgotten += names.erase(hash);
  return forgotten > 0;
}

void RemoteTierStats::add(const RemoteTierStats& far) {
  fetched_blocks += far.fetched_blocks;
  fetched_bytes += far.fetched_bytes;
  stored_blocks += far.stored_blocks;
  stored_bytes += far.stored_bytes;
  there_already += far.there_already;
  dropped_full += far.dropped_full;
  dropped_failed += far.dropped_failed;
  waiting_blocks += far.waiting_blocks;
  absent += far.absent;
  for (std::size_t i = 0; i < kNumWrongValues; ++i) wrong[i] += far.wrong[i];
  probes += far.probes;
  probes_spared += far.probes_spared;
  probes_late += far.probes_late;
  far_codec = far.codec;
}

RemoteTierStats RemoteTier::stats() const {
  const RemoteCounters& counters = context_->counters;
  RemoteTierStats stats{.cache = context_->cache->config().name,
                        .fetched_blocks = counters.fetched_blocks,
                        .fetched_bytes = counters.fetched_bytes,
                        .stored_blocks = counters.stored_blocks,
                        .stored_bytes = counters.stored_bytes,
                        .there_already = counters.there_already,
                        .dropped_full = counters.dropped_full,
                        .dropped_failed = counters.dropped_failed,
                        .absent = counters.absent,
                        .announced = counters.announced,
                        .withdrawn = counters.withdrawn,
                        .probes = counters.probes,
                        .probes_spared = counters.probes_spared,
                        .probes_late = counters.probes_late,
                        .codec = context_->codec.stats()};
  std::ranges::copy(counters.wrong, stats.wrong.begin());
  if (evictions_) {
    stats.waiting_blocks = evictions_->waiting();
    stats.dropped_full += context_->cache->evicted_without_remote();
  }
  {
    MutexLock lock(mutex_);
    stats.waiting_blocks += waiting_.size() + storing_;
  }
  if (far_) stats.add(far_->stats());
  return stats;
}

}  // namespace cairn
