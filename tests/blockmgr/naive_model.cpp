#include "tests/blockmgr/naive_model.hpp"

#include <algorithm>
#include <memory>
#include <tuple>

namespace cairn::testing {

NaiveModel::NaiveModel(const CacheConfig& config) : config_(config) {}

void NaiveModel::set_time(std::int64_t ms) {
  // Leases end in order of expiry, which sets the last use of their blocks.
  std::vector<std::pair<std::int64_t, LeaseName>> ended;
  for (const auto& [name, lease] : leases) {
    if (lease.expires_ms <= ms) ended.emplace_back(lease.expires_ms, name);
  }
  std::sort(ended.begin(), ended.end());
  now_ms_ = ms;
  for (const auto& [when, name] : ended) end(name);
  drop_overdue();
}

bool NaiveModel::overdue(Key key) const {
  const auto& expires_ms = blocks.at(key).expires_ms;
  return expires_ms && *expires_ms <= now_ms_;
}

bool NaiveModel::is_leased(Key key) const {
  return std::any_of(copies.begin(), copies.end(), [&](const auto& c) {
    return c.second.found && c.second.key == key && c.second.pins > 0;
  });
}

void NaiveModel::drop_overdue() {
  std::vector<Key> ended;
  for (const auto& [key, block] : blocks) {
    if (overdue(key) && !is_leased(key)) ended.push_back(key);
  }
  std::ranges::stable_sort(ended, {}, [this](Key key) { return *blocks.at(key).expires_ms; });
  for (Key key : ended) drop_key(key);
}

std::optional<NaiveModel::CopyId> NaiveModel::copy(Key key, Tier tier) const {
  for (const auto& [id, c] : copies) {
    if (c.found && c.key == key && c.tier == tier) return id;
  }
  return std::nullopt;
}

std::optional<NaiveModel::CopyId> NaiveModel::highest(Key key) const {
  for (Tier tier : kTiers) {
    if (auto id = copy(key, tier)) return id;
  }
  return std::nullopt;
}

std::vector<NaiveModel::Key> NaiveModel::present_in(Tier tier) const {
  std::vector<Key> keys;
  for (const auto& [key, block] : blocks) {
    if (copy(key, tier)) keys.push_back(key);
  }
  return keys;
}

std::uint64_t NaiveModel::count(Tier tier, SlotState state) const {
  if (state == SlotState::free) return static_cast<std::uint64_t>(free(tier));
  std::uint64_t n = 0;
  for (const auto& [id, c] : copies) {
    if (c.tier != tier) continue;
    const SlotState is = c.key < 0    ? SlotState::allocated
                         : c.pins > 0 ? SlotState::committed
                                      : SlotState::evictable;
    n += is == state ? 1 : 0;
  }
  return n;
}

std::uint64_t NaiveModel::leased(Tier tier) const {
  std::uint64_t n = 0;
  for (const auto& [id, c] : copies) n += c.tier == tier && c.pins > 0 ? 1 : 0;
  return n;
}

std::optional<Tier> NaiveModel::lower(Tier tier) const {
  for (std::size_t i = index_of(tier) + 1; i < kNumTiers; ++i) {
    if (has_tier(kTiers[i])) return kTiers[i];
  }
  return std::nullopt;
}

int NaiveModel::free(Tier tier) const {
  if (!has_tier(tier)) return 0;
  auto n = static_cast<int>(config_.tiers[index_of(tier)]->num_blocks);
  for (const auto& [id, c] : copies) n -= c.tier == tier ? 1 : 0;
  return n;
}

int NaiveModel::attainable(Tier tier) const {
  int n = free(tier);
  for (const auto& [id, c] : copies) {
    n += c.tier == tier && c.found && (c.pins == 0 || c.leaving) ? 1 : 0;
  }
  for (const Request& request : requests_[index_of(tier)]) n -= request.count;
  return std::max(0, n);
}

int NaiveModel::leaving(Tier tier) const {
  int n = 0;
  for (const auto& [id, c] : copies) n += c.tier == tier && c.leaving ? 1 : 0;
  return n;
}

bool NaiveModel::last_copy(const Copy& c) const {
  return std::none_of(copies.begin(), copies.end(), [&](const auto& other) {
    return other.second.found && other.second.key == c.key && other.second.tier != c.tier;
  });
}

bool NaiveModel::has_children(Key key) const {
  return std::any_of(blocks.begin(), blocks.end(),
                     [&](const auto& other) { return other.second.parent == key; });
}

bool NaiveModel::wants_offload(const Copy& c) const {
  if (config_.offload != OffloadMode::on_evict || !lower(c.tier)) return false;
  if (cut_off(c) && free(*lower(c.tier)) <= leaving(c.tier)) return false;
  return std::none_of(copies.begin(), copies.end(), [&](const auto& other) {
    return other.second.found && other.second.key == c.key && other.second.tier > c.tier;
  });
}

bool NaiveModel::has_children_in_tier(const Copy& c) const {
  for (const auto& [key, block] : blocks) {
    if (block.parent != c.key) continue;
    if (auto child = copy(key, c.tier); child && !copies.at(*child).leaving) return true;
  }
  return false;
}

bool NaiveModel::may_go(const Copy& c) const {
  if (!c.found || c.pins > 0 || c.leaving || has_children_in_tier(c)) return false;
  const bool offloads = config_.offload == OffloadMode::on_evict && lower(c.tier);
  return offloads || !last_copy(c) || !has_children(c.key);
}

std::optional<NaiveModel::CopyId> NaiveModel::victim(Tier tier) const {
  std::optional<CopyId> best;
  for (const auto& [id, c] : copies) {
    if (c.tier != tier || !may_go(c)) continue;
    // Blocks that no match reaches go first, whatever their priority.
    const auto rank = [this](const Copy& of) {
      return std::tuple(!cut_off(of), cut_off(of) ? 0 : of.priority, of.used);
    };
    if (!best || rank(c) < rank(copies.at(*best))) best = id;
  }
  return best;
}

int NaiveModel::reclaim(Tier tier, int count) {
  const int before = free(tier) + leaving(tier);
  std::vector<CopyId> victims;
  for (int i = 0; i < count; ++i) {
    const auto next = victim(tier);
    if (!next) break;
    Copy& c = copies.at(*next);
    if (wants_offload(c)) {
      c.leaving = true;
      ++c.pins;
      victims.push_back(*next);
    } else {
      if (!cut_off(c) && last_copy(c) && has_children(c.key)) ++evicted_parent_before_child;
      drop(*next);
    }
  }
  if (!victims.empty()) offload(victims, false);
  return free(tier) + leaving(tier) - before;
}

void NaiveModel::offload(std::vector<CopyId> victims, bool forced) {
  const Tier below = *lower(copies.at(victims.front()).tier);
  const auto room =
      std::min(victims.size(), static_cast<std::size_t>(std::max(0, attainable(below))));
  const auto unplaced = static_cast<std::ptrdiff_t>(victims.size() - room);
  for (std::ptrdiff_t i = 0; i < unplaced; ++i)
    let_go(victims[static_cast<std::size_t>(i)], forced);
  victims.erase(victims.begin(), victims.begin() + unplaced);
  if (victims.empty()) return;
  const auto asking = std::make_shared<bool>(true);
  const auto granted = [this, victims, forced, asking](Slots slots) {
    if (!slots) {
      for (CopyId id : victims) let_go(id, forced);
      if (!*asking) changed_ = true;
      return;
    }
    const auto first = victims.end() - static_cast<std::ptrdiff_t>(slots->size());
    for (auto id = victims.begin(); id != first; ++id) let_go(*id, forced);
    if (first != victims.begin() && !*asking) changed_ = true;
    jobs_.push_back([this, homed = std::vector<CopyId>(first, victims.end()), slots = *slots] {
      for (std::size_t i = 0; i < homed.size(); ++i) {
        arrive(slots[i], homed[i]);
        Copy& c = copies.at(homed[i]);
        if (c.pins > 1) {
          c.leaving = false;
        } else {
          drop(homed[i]);
        }
        unpin(homed[i]);
      }
    });
  };
  if (!ask(below, {static_cast<int>(victims.size()), granted, true})) granted(std::nullopt);
  *asking = false;
}

bool NaiveModel::let_go(CopyId victim, bool forced) {
  Copy& c = copies.at(victim);
  const bool leaves = c.pins == 1 && (forced || !last_copy(c) || !has_children(c.key));
  c.leaving = false;
  if (leaves) drop(victim);
  unpin(victim);
  return leaves;
}

void NaiveModel::arrive(CopyId slot, CopyId source) {
  const Copy from = copies.at(source);
  Copy& c = copies.at(slot);
  if (!copy(from.key, c.tier)) {
    c.key = from.key;
    c.found = true;
    c.priority = from.priority;
  }
  unpin(slot);
}

bool NaiveModel::ask(Tier tier, Request request) {
  if (attainable(tier) < request.count) return false;
  requests_[index_of(tier)].push_back(std::move(request));
  serve(tier);
  return true;
}

void NaiveModel::serve(Tier tier) {
  auto& waiting = requests_[index_of(tier)];
  while (!waiting.empty()) {
    const int count = waiting.front().count;
    const bool enough = free(tier) >= count;
    if (!enough) {
      int wanted = -free(tier) - leaving(tier);
      for (const Request& request : waiting) wanted += request.count;
      if (wanted > 0 && reclaim(tier, wanted) > 0) continue;
      if (leaving(tier) > 0) return;
    }
    const Request request = std::move(waiting.front());
    waiting.pop_front();
    Slots slots;
    const int given = enough ? count : request.takes_fewer ? std::max(0, free(tier)) : 0;
    if (enough || given > 0) {
      slots.emplace();
      for (int i = 0; i < given; ++i) slots->push_back(place(tier, 50));
    }
    request.granted(slots);
  }
}

void NaiveModel::run() {
  for (;;) {
    while (changed_) {
      changed_ = false;
      for (Tier tier : kTiers) serve(tier);
    }
    if (jobs_.empty()) return;
    const auto job = std::move(jobs_.front());
    jobs_.pop_front();
    job();
    changed_ = true;
  }
}

void NaiveModel::resize(Tier tier, int capacity) {
  config_.tiers[index_of(tier)]->num_blocks = static_cast<std::uint32_t>(capacity);
  changed_ = false;
  while (free(tier) + leaving(tier) < 0) {
    const int excess = -free(tier) - leaving(tier);
    if (reclaim(tier, excess) == 0 && cut_chains(tier, excess) == 0) return;
    run();
  }
}

int NaiveModel::cut_chains(Tier tier, int count) {
  std::vector<CopyId> tails;
  for (const auto& [id, c] : copies) {
    if (c.tier == tier && c.found && c.pins == 0 && !c.leaving && !has_children_in_tier(c)) {
      tails.push_back(id);
    }
  }
  std::ranges::sort(tails, {}, [&](CopyId id) {
    const Copy& c = copies.at(id);
    return std::tuple(!cut_off(c), c.priority, c.used);
  });
  tails.resize(std::min(tails.size(), static_cast<std::size_t>(count)));
  for (CopyId id : tails) drop(id);
  return static_cast<int>(tails.size());
}

NaiveModel::CopyId NaiveModel::place(Tier tier, int priority) {
  copies[++last_copy_id_] = {.tier = tier, .pins = 1, .priority = priority};
  return last_copy_id_;
}

NaiveModel::Slots NaiveModel::allocate(Tier tier, int count, int priority) {
  changed_ = false;  // earlier changes were handled when they happened
  Slots result;
  ask(tier, {count, [&](Slots slots) { result = std::move(slots); }});
  run();
  if (result) {
    for (CopyId id : *result) {
      copies.at(id).priority = priority;
      copies.at(id).pins = 0;  // the caller's lease holds it next
    }
  }
  return result;
}

bool NaiveModel::commit(LeaseName lease, CopyId slot, Key key, Block block) {
  if (present(key)) {
    release(lease, {slot});
    return false;
  }
  // A block cannot have its own descendant as a parent.
  std::optional<Key> above = block.parent;
  while (above && *above != key) above = present(*above) ? blocks.at(*above).parent : std::nullopt;
  if (above) block.parent.reset();
  block.born = ++births_;
  block.cut_off = block.parent && (!present(*block.parent) || blocks.at(*block.parent).cut_off);
  blocks[key] = std::move(block);
  copies.at(slot).key = key;
  copies.at(slot).found = true;
  settle_children(key);
  return true;
}

// Called when a key appears or disappears. Blocks that become reachable or unreachable count as
// used.
void NaiveModel::settle_children(Key first) {
  for (std::deque<Key> parents{first}; !parents.empty(); parents.pop_front()) {
    const Key parent = parents.front();
    const bool cut = !present(parent) || blocks.at(parent).cut_off;
    std::vector<Key> changed;
    for (const auto& [key, block] : blocks) {
      if (block.parent == parent && block.cut_off != cut) changed.push_back(key);
    }
    std::ranges::sort(changed, std::ranges::greater{},
                      [this](Key key) { return blocks.at(key).born; });
    for (const Key key : changed) {
      blocks.at(key).cut_off = cut;
      for (const Tier tier : kTiers) {
        const auto id = copy(key, tier);
        if (id && copies.at(*id).pins == 0) copies.at(*id).used = ++uses_;
      }
      parents.push_back(key);
    }
  }
}

std::vector<NaiveModel::CopyId> NaiveModel::match(const std::vector<Key>& keys) const {
  std::vector<CopyId> found;
  for (Key key : keys) {
    const auto id = highest(key);
    if (!id || overdue(key)) break;
    found.push_back(*id);
  }
  return found;
}

void NaiveModel::hold(LeaseName lease, CopyId id) {
  ++copies.at(id).pins;
  leases.at(lease).held.push_back(id);
}

void NaiveModel::touch(CopyId id) {
  if (copies.at(id).pins == 0) copies.at(id).used = ++uses_;
}

void NaiveModel::unpin(CopyId id) {
  Copy& c = copies.at(id);
  if (--c.pins > 0) return;
  c.used = ++uses_;
  if (c.found) return;
  copies.erase(id);
  changed_ = true;
}

void NaiveModel::release(LeaseName lease, std::vector<CopyId> some) {
  auto& held = leases.at(lease).held;
  for (std::size_t i = held.size(); i-- > 0;) {
    const auto wanted = std::find(some.begin(), some.end(), held[i]);
    if (wanted == some.end()) continue;
    some.erase(wanted);
    const CopyId id = held[i];
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
    const Copy of = copies.at(id);
    unpin(id);
    if (of.found && overdue(of.key) && !is_leased(of.key)) drop_key(of.key);
  }
}

void NaiveModel::end(LeaseName lease) {
  release(lease, leases.at(lease).held);
  leases.erase(lease);
}

void NaiveModel::drop(CopyId id) {
  Copy& c = copies.at(id);
  const Key key = c.key;
  c.found = false;
  c.leaving = false;
  if (c.pins == 0) {
    copies.erase(id);
    changed_ = true;
  }
  if (highest(key)) return;
  blocks.erase(key);
  settle_children(key);
}

void NaiveModel::drop_key(Key key) {
  for (Tier tier : kTiers) {
    if (auto id = copy(key, tier)) drop(*id);
  }
}

std::optional<NaiveModel::CopyId> NaiveModel::source(Key key, Tier to) const {
  for (Tier tier : {Tier::pinned, Tier::device, Tier::disk}) {
    if (auto id = copy(key, tier); id && tier != to) return id;
  }
  return std::nullopt;
}

bool NaiveModel::reads_from_two_tiers(const std::vector<Key>& keys, Tier to) const {
  std::set<Tier> from;
  for (Key key : keys) {
    if (copy(key, to)) continue;
    if (auto id = source(key, to)) from.insert(copies.at(*id).tier);
  }
  return from.size() > 1;
}

std::optional<bool> NaiveModel::transfer(const std::vector<Key>& keys, Tier to, bool move) {
  changed_ = false;
  int missing = 0;
  int unpinned = 0;
  for (Key key : keys) {
    const auto id = copy(key, to);
    missing += id ? 0 : 1;
    unpinned += id && copies.at(*id).pins == 0 ? 1 : 0;
  }
  if (missing > 0 && missing + unpinned > attainable(to)) return std::nullopt;
  const auto drop_others = [this, to, move](Key key, Tier from) {
    for (Tier tier : kTiers) {
      const auto id = copy(key, tier);
      if (!move || !id || tier == to || (tier > to && tier != from)) continue;
      if (copies.at(*id).pins == 0) drop(*id);
    }
  };
  std::vector<CopyId> kept;
  std::vector<CopyId> sources;
  for (Key key : keys) {
    if (auto id = copy(key, to)) {
      ++copies.at(*id).pins;
      kept.push_back(*id);
      drop_others(key, to);
    } else {
      sources.push_back(*source(key, to));
      ++copies.at(sources.back()).pins;
    }
  }
  std::stable_sort(sources.begin(), sources.end(),
                   [&](CopyId a, CopyId b) { return copies.at(a).tier < copies.at(b).tier; });
  bool arrived = sources.empty();
  const auto finish = [this, &kept] {
    for (auto id = kept.rbegin(); id != kept.rend(); ++id) unpin(*id);
  };
  const auto granted = [&](Slots slots) {
    if (!slots) {
      for (auto id = sources.rbegin(); id != sources.rend(); ++id) unpin(*id);
      return finish();
    }
    arrived = true;
    jobs_.push_back([&, slots = *slots] {
      for (std::size_t i = 0; i < sources.size(); ++i) {
        const Copy from = copies.at(sources[i]);
        arrive(slots[i], sources[i]);
        unpin(sources[i]);
        drop_others(from.key, from.tier);
      }
      finish();
    });
  };
  if (sources.empty()) {
    finish();
  } else if (!ask(to, {static_cast<int>(sources.size()), granted})) {
    granted(std::nullopt);
  }
  run();
  return arrived;
}

void NaiveModel::evict(const std::vector<Key>& keys, Tier tier) {
  changed_ = false;
  std::vector<CopyId> victims;
  for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
    const auto id = copy(*key, tier);
    if (!id || copies.at(*id).pins > 0) continue;
    if (wants_offload(copies.at(*id))) {
      copies.at(*id).leaving = true;
      ++copies.at(*id).pins;
      victims.push_back(*id);
    } else {
      drop(*id);
    }
  }
  if (!victims.empty()) offload(victims, true);
  run();
}

}  // namespace cairn::testing
