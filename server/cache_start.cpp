#include "server/cache_start.hpp"

#include <algorithm>
#include <utility>

#include "server/config/cache_merge.hpp"
#include "server/config/may_pass.hpp"
#include "server/config/settings.hpp"

namespace cairn {
namespace {

// Whether this is only the default cache, made if none is configured; with or without shared tier.
bool is_only_default(std::vector<CacheConfig> caches) {
  if (caches.size() != 1) return false;
  caches.front().shared.reset();
  caches.front().shared_far.reset();
  return caches.front() == default_cache();
}

bool awaits_engine(const CacheConfig& cache) {
  return std::ranges::any_of(cache.tiers,
                             [](const auto& tier) { return tier && tier->import.has_value(); });
}

std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += (all.empty() ? "" : "; ") + part;
  return all;
}

}  // namespace

Result<> CacheStart::make_all(const std::vector<CacheConfig>& configured) {
  auto remembered = services_.catalog.remembered();
  if (!remembered) return std::move(remembered).error();
  std::vector<CacheConfig> wanted = configured;
  const auto known = [&remembered](const std::string& name) {
    return std::ranges::any_of(*remembered,
                               [&name](const auto& one) { return one.cache.name == name; });
  };
  if (is_only_default(wanted) && known(wanted.front().name)) wanted.clear();
  for (const CacheConfig& cache : wanted) services_.catalog.configure(cache);
  for (const CacheConfig& cache : wanted) {
    const CacheConfig merged = merge(cache, *remembered);
    auto made = make(merged);
    if (made) continue;
    const ErrorCode code = made.error().code;
    // The conflict of a remembered cache need not come from its settings.
    const bool was_served = code == ErrorCode::state_conflict && known(cache.name);
    if (!may_pass(code) && !was_served) {
      return Error{code, "cache '" + cache.name + "': " + made.error().detail};
    }
    note_unmade(merged, std::move(made).error());
  }
  for (const CacheCatalog::Remembered& one : *remembered) {
    const std::string& name = one.cache.name;
    if (std::ranges::find(wanted, name, &CacheConfig::name) != wanted.end()) continue;
    if (!one.cache.tiers[index_of(Tier::disk)]) {
      // It has no disk tier, and the configuration no longer names it.
      static_cast<void>(services_.catalog.forget(name));
      continue;
    }
    // A cache that cannot come back must not stop the others. Its files stay.
    if (auto made = make(one.cache); !made) note_unmade(one.cache, std::move(made).error());
  }
  return {};
}

CacheConfig CacheStart::merge(const CacheConfig& wanted,
                              const std::vector<CacheCatalog::Remembered>& remembered) {
  const auto at = std::ranges::find_if(
      remembered, [&wanted](const auto& one) { return one.cache.name == wanted.name; });
  if (at == remembered.end()) return wanted;
  MergedCache merged =
      merge_cache({.remembered = at->cache, .configured = at->configured, .wanted = wanted});
  if (!merged.changed.empty()) {
    services_.log.warning(
        "a cache is as it was changed while it served, and not as the configuration says",
        {{"cache", wanted.name}, {"differs", joined(merged.changed)}});
  }
  if (!merged.edited.empty()) {
    services_.log.warning("what the configuration says now replaces what a cache was changed to",
                          {{"cache", wanted.name}, {"differs", joined(merged.edited)}});
  }
  return std::move(merged.cache);
}

Result<> CacheStart::make(const CacheConfig& cache) {
  auto created = services_.manager.create_cache(cache);
  if (!created) return std::move(created).error();
  if (services_.shared != nullptr) services_.shared->of(created->cache);
  services_.unmade.remove(cache.name);
  services_.log.info("cache made",
                     {{"cache", cache.name}, {"block_bytes", created->cache->block_bytes()}});
  const CacheConfig now = created->cache->config();
  if (const auto& disk = cache.tiers[index_of(Tier::disk)]) {
    const std::uint32_t had = now.tiers[index_of(Tier::disk)]->num_blocks;
    if (had != disk->num_blocks) {
      resizing_.insert_or_assign(cache.name,
                                 Sizes{.had_blocks = had, .wanted_blocks = disk->num_blocks});
    }
  }
  auto kept = services_.catalog.remember(cache);
  if (kept) return {};
  services_.log.error("a cache's description could not be written",
                      {{"cache", cache.name}, {"detail", kept.error().detail}});
  if (may_pass(kept.error().code)) unwritten_.insert(cache.name);
  return {};
}

void CacheStart::note_unmade(const CacheConfig& cache, Error why) {
  const bool is_engines = awaits_engine(cache);
  services_.log.error("a remembered cache could not be made",
                      {{"cache", cache.name},
                       {"detail", why.detail},
                       {"again", is_engines ? "when its engine makes it" : "soon"}});
  services_.unmade.add({.name = cache.name, .why = std::move(why), .awaits_engine = is_engines});
  if (!is_engines) wanted_.insert_or_assign(cache.name, cache);
}

bool CacheStart::has_work() const {
  return !wanted_.empty() || !resizing_.empty() || !unwritten_.empty();
}

bool CacheStart::retry() {
  // A client may have made it meanwhile, or deleted it.
  const std::vector<UnmadeCache> unmade = services_.unmade.list();
  std::erase_if(wanted_, [&unmade](const auto& one) {
    return std::ranges::find(unmade, one.first, &UnmadeCache::name) == unmade.end();
  });
  if (++waited_ < pause_) return has_work();
  waited_ = 0;
  bool any = false;
  for (auto at = wanted_.begin(); at != wanted_.end();) {
    auto made = make(at->second);
    if (!made) {
      services_.unmade.add({.name = at->first, .why = std::move(made).error()});
      ++at;
      continue;
    }
    any = true;
    at = wanted_.erase(at);
  }
  any |= std::erase_if(resizing_,
                       [this](const auto& one) { return resize(one.first, one.second); }) > 0;
  any |= std::erase_if(unwritten_, [this](const std::string& name) { return write(name); }) > 0;
  pause_ = any ? 1 : std::min(2 * pause_, kMaxPause);
  return has_work();
}

// Returns true if nothing is left to do; so does write().
bool CacheStart::resize(const std::string& name, const Sizes& sizes) {
  const auto cache = services_.manager.find_cache(name);
  if (!cache) return true;
  const auto disk = (*cache)->config().tiers[index_of(Tier::disk)];
  // A client has changed its size since.
  if (!disk || disk->num_blocks != sizes.had_blocks) return true;
  CacheChange change;
  change.num_blocks[index_of(Tier::disk)] = sizes.wanted_blocks;
  const auto changed = (*cache)->change(
      change, [this](const CacheConfig& config) { return services_.catalog.remember(config); });
  if (!changed) return false;
  services_.log.info("a disk tier has its configured size now",
                     {{"cache", name}, {"num_blocks", sizes.wanted_blocks}});
  return true;
}

bool CacheStart::write(const std::string& name) {
  const auto cache = services_.manager.find_cache(name);
  return !cache || services_.catalog.remember((*cache)->config()).has_value();
}

}  // namespace cairn
