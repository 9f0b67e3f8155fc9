#include "blockmgr/remote_tier/remote_tiers.hpp"

#include <utility>

namespace cairn {
namespace {

constexpr std::size_t kEventsAtOnce = 1'024;

}  // namespace

RemoteTiers::RemoteTiers(BlockManager& manager, Beyond beyond, const Clock& clock,
                         Executor& executor, RemoteTierOptions options)
    : manager_(manager),
      clock_(clock),
      executor_(executor),
      options_(options),
      stores_(std::move(beyond.stores)),
      peers_(std::move(beyond.peers)),
      next_event_(manager.events().next_id()),
      events_(kEventsAtOnce) {}

RemoteTiers::~RemoteTiers() { end(); }

void RemoteTiers::end() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(ended_, true)) return;
    for (const auto& [name, tier] : tiers_) tier->end();
    if (url_watch_) url_watch_->end();
  }
  under_way_.wait_empty(executor_);
}

void RemoteTiers::advertise(RemoteAddress address) {
  MutexLock lock(mutex_);
  own_address_ = std::move(address);
}

std::shared_ptr<RemoteTier> RemoteTiers::of(const std::shared_ptr<Cache>& cache) {
  if (!cache->config().shared) return nullptr;
  MutexLock lock(mutex_);
  if (ended_) return nullptr;
  std::shared_ptr<RemoteTier>& tier = tiers_[cache->config().name];
  // Another cache of the same name may have been created.
  if (tier && &tier->cache() != cache.get()) {
    tier->end();
    tier.reset();
  }
  if (!tier) {
    const auto services_of = [&](const RemoteTierConfig& config) CAIRN_REQUIRES(mutex_) {
      return RemoteTier::Services{.beyond = {.config = config,
                                             .store = store(config.store),
                                             .peers = peers_.get(),
                                             .own_address = own_address_,
                                             .under_way = under_way_,
                                             .executor = executor_},
                                  .clock = clock_,
                                  .options = options_};
    };
    RemoteTier::Services services = services_of(*cache->config().shared);
    if (const auto& far = cache->config().shared_far) {
      RemoteTier::Services of_far = services_of(*far);
      of_far.tells_events = false;
      services.beyond.far = &store(far->store);
      services.far = std::make_shared<RemoteTier>(cache, of_far);
    }
    tier = std::make_shared<RemoteTier>(cache, services);
    tier->begin();
  }
  return tier;
}

void RemoteTiers::ask_peer(BlockPeers::Read read, UniqueFunction<void(Result<std::size_t>)> done) {
  bool may_ask = peers_ != nullptr;
  if (MutexLock lock(mutex_); may_ask) {
    may_ask = !ended_;
    if (may_ask) under_way_.enter();
  }
  if (!may_ask) return done(Error{ErrorCode::cancelled, "the server ends"});
  peers_->read(std::move(read), [this, done = std::move(done)](Result<std::size_t> bytes) mutable {
    done(std::move(bytes));
    under_way_.leave();
  });
}

void RemoteTiers::poll() {
  forget_dropped();
  take_events();
  bool has_holders = false;
  for (const auto& cache : manager_.caches()) {
    const auto tier = of(cache);
    if (!tier) continue;
    tier->look();
    has_holders |= cache->config().shared->placement == RemoteTierConfig::Placement::holders;
  }
  if (has_holders) watch_url();
}

void RemoteTiers::watch_url() {
  std::shared_ptr<RemoteUrlWatch> watch;
  {
    MutexLock lock(mutex_);
    if (own_address_.instance.empty()) return;
    if (!url_watch_) {
      url_watch_ = std::make_shared<RemoteUrlWatch>(
          RemoteUrlWatch::Services{.store = store(RemoteTierConfig::Store::redis),
                                   .under_way = under_way_,
                                   .clock = clock_},
          RemoteUrlWatch::Self{.url = own_address_.url, .instance = own_address_.instance});
    }
    watch = url_watch_;
  }
  watch->look();
}

std::vector<std::string> RemoteTiers::same_url() const {
  MutexLock lock(mutex_);
  return url_watch_ ? url_watch_->others() : std::vector<std::string>();
}

void RemoteTiers::take_events() {
  const EventRing& ring = manager_.events();
  while (true) {
    const auto read = ring.read(next_event_, events_);
    next_event_ = read.next_id;
    missed_events_.fetch_add(read.lost, std::memory_order_relaxed);
    // Consecutive events mostly belong to the same cache.
    std::uint32_t number = 0;
    std::shared_ptr<RemoteTier> tier;
    for (std::size_t i = 0; i < read.count; ++i) {
      const BlockEvent& event = events_[i];
      if (event.kind == BlockEventKind::cleared || event.tier == EventTier::shared) continue;
      if (event.cache != std::exchange(number, event.cache)) {
        const auto cache = manager_.find_cache(ring.cache_name(event.cache));
        tier = cache ? of(*cache) : nullptr;
      }
      if (!tier) continue;
      if (event.kind == BlockEventKind::stored) {
        tier->stored(*event.key, event.parent);
      } else {
        tier->removed(*event.key);
      }
    }
    if (read.count < events_.size()) return;
  }
}

void RemoteTiers::forget_dropped() {
  MutexLock lock(mutex_);
  for (auto at = tiers_.begin(); at != tiers_.end();) {
    const auto cache = manager_.find_cache(at->first);
    if (cache && cache->get() == &at->second->cache()) {
      ++at;
      continue;
    }
    at->second->end();
    at = tiers_.erase(at);
  }
}

RemoteStoreStats RemoteTiers::store_stats() const {
  RemoteStoreStats all;
  all.is_ready = true;
  for (const auto& store : stores_) {
    if (store != nullptr) all.add(store->stats());
  }
  return all;
}

// Creates missing tiers, so each cache is listed from its start.
std::vector<RemoteTierStats> RemoteTiers::stats() {
  std::vector<RemoteTierStats> all;
  for (const auto& cache : manager_.caches()) {
    if (const auto tier = of(cache)) all.push_back(tier->stats());
  }
  return all;
}

}  // namespace cairn
