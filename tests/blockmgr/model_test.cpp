// Runs random operations on a cache and on its model. After each, they must agree on the blocks in
// each tier, their states and their bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <random>

#include "tests/blockmgr/naive_model.hpp"
#include "tests/blockmgr/rig.hpp"

namespace cairn::testing {
namespace {

constexpr int kKeys = 60;
constexpr int kOperations = 4000;

struct Setup {
  const char* name;
  TierSizes sizes;
  OffloadMode offload;
  bool layer_separate;
};

class Walk {
 public:
  Walk(const Setup& setup, std::uint64_t seed)
      : random_(seed),
        rig_({.options = {}, .workers = 1}),
        config_(make_config(setup)),
        model_(config_) {
    for (Tier tier : kTiers) {
      if (config_.tiers[index_of(tier)]) tiers_.push_back(tier);
    }
  }

  void step() {
    switch (pick(15)) {
      case 0:
      case 1:
      case 2:
        return put();
      case 3:
      case 4:
        return match(true);
      case 5:
        return match(false);
      case 6:
        return release();
      case 7:
        return renew();
      case 8:
        return advance();
      case 9:
        return transfer();
      case 10:
        return evict();
      case 11:
        return pick(8) == 0 ? clear() : erase();
      case 12:
        return metadata();
      case 13:
        return pick(4) == 0 ? resize() : read();
      default:
        return read();
    }
  }

  void compare() {
    for (Tier tier : tiers_) {
      std::vector<BlockKey> expected;
      for (int k : model_.present_in(tier)) expected.push_back(name(k));
      std::vector<BlockKey> actual = present_in(*cache_, tier);
      const auto order = [](const BlockKey& a, const BlockKey& b) {
        return std::lexicographical_compare(a.view().bytes().begin(), a.view().bytes().end(),
                                            b.view().bytes().begin(), b.view().bytes().end());
      };
      std::sort(expected.begin(), expected.end(), order);
      std::sort(actual.begin(), actual.end(), order);
      ASSERT_TRUE(expected == actual)
          << "the keys in tier " << to_string(tier) << " differ: " << actual.size() << ", not "
          << expected.size();
      const auto stats = cache_->stats().tiers[index_of(tier)];
      for (SlotState state :
           {SlotState::free, SlotState::allocated, SlotState::committed, SlotState::evictable}) {
        ASSERT_EQ(stats.blocks[static_cast<std::size_t>(state)], model_.count(tier, state))
            << to_string(tier) << " " << to_string(state);
      }
      ASSERT_EQ(stats.leased_blocks, model_.leased(tier));
    }
    ASSERT_EQ(cache_->stats().leases, model_.leases.size());
    ASSERT_EQ(model_.evicted_parent_before_child, 0u);
  }

  void compare_bytes() {
    for (int k = 0; k < kKeys; ++k) compare_bytes(k);
  }

  void end_all() {
    for (const auto& [id, lease] : ids_) {
      ASSERT_TRUE(cache_->release(lease, {}));
      model_.end(id);
    }
    ids_.clear();
    compare();
    compare_bytes();
    for (Tier tier : tiers_) ASSERT_EQ(model_.count(tier, SlotState::committed), 0u);
  }

 private:
  static CacheConfig make_config(const Setup& setup) {
    CacheConfig config = small_cache(setup.sizes, setup.offload);
    for (auto& tier : config.tiers) {
      if (!tier || !setup.layer_separate) continue;
      tier->layout = LayoutKind::layer_separate;
      tier->block_dim = &tier == &config.tiers[0] ? BlockDim::second : BlockDim::first;
    }
    return config;
  }

  int pick(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }
  Tier some_tier() {
    return tiers_[static_cast<std::size_t>(pick(static_cast<int>(tiers_.size())))];
  }
  // Keys of every allowed length.
  static BlockKey name(int k) {
    return key(static_cast<std::uint64_t>(k), 8 + static_cast<std::size_t>(k) % 57);
  }

  // Keys form a tree: 0 to 9 are roots, and k's parent is k - 10, so a column is a chain.
  std::vector<int> chain(int from, int length) {
    std::vector<int> list;
    for (int k = from; k < kKeys && length > 0; k += 10, --length) list.push_back(k);
    return list;
  }
  static std::vector<BlockKey> names(const std::vector<int>& list) {
    std::vector<BlockKey> result;
    for (int k : list) result.push_back(name(k));
    return result;
  }
  Bytes random_bytes() {
    Bytes bytes(64);
    for (std::byte& b : bytes) b = static_cast<std::byte>(pick(256));
    return bytes;
  }
  std::uint32_t lease_ms() {
    for (;;) {
      const auto ms = static_cast<std::uint32_t>(1 + pick(20'000));
      const bool taken =
          std::any_of(model_.leases.begin(), model_.leases.end(),
                      [&](const auto& l) { return l.second.expires_ms == now_ms_ + ms; });
      if (!taken) return ms;
    }
  }
  int open(const LeaseId& id, std::uint32_t ms) {
    ids_[++last_lease_] = id;
    model_.leases[last_lease_].expires_ms = now_ms_ + ms;
    return last_lease_;
  }
  std::optional<int> some_lease() {
    if (ids_.empty()) return std::nullopt;
    return std::next(ids_.begin(), pick(static_cast<int>(ids_.size())))->first;
  }

  void put() {
    const std::vector<int> list = chain(pick(kKeys), 1 + pick(5));
    const Tier tier = some_tier();
    const int priority = pick(4) == 0 ? 10 : 50;
    const std::uint32_t ms = lease_ms();
    const auto count = static_cast<std::uint32_t>(list.size());
    const auto slots = model_.allocate(tier, static_cast<int>(count), priority);
    const auto allocation =
        rig_.allocate(*cache_, {.count = count,
                                .tier = tier,
                                .lease_ms = ms,
                                .priority = static_cast<std::uint8_t>(priority)});
    ASSERT_EQ(allocation.has_value(), slots.has_value());
    if (!allocation) {
      ASSERT_EQ(allocation.error().code, ErrorCode::no_capacity);
      return;
    }
    const int lease = open(allocation->lease, ms);
    for (auto slot : *slots) model_.hold(lease, slot);

    std::vector<CommitBlock> blocks;
    std::vector<CommitStatus> expected;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const int k = list[i];
      const BlockHandle handle = allocation->blocks[i];
      NaiveModel::Block block;
      if (k >= 10 && pick(8) > 0) block.parent = k - 10;
      block.bytes = pick(10) == 0 ? Bytes(64) : random_bytes();
      if (block.bytes != Bytes(64)) {
        ASSERT_TRUE(
            rig_.write(*cache_, {.lease = allocation->lease, .block = handle}, block.bytes));
      }
      if (pick(6) == 0) continue;  // stays uncommitted
      CommitBlock wanted{.handle = handle, .key = name(k)};
      if (block.parent) wanted.parent = name(*block.parent);
      if (pick(6) == 0) {
        wanted.ttl_ms = static_cast<std::uint64_t>(1 + pick(20'000));
        block.expires_ms = now_ms_ + static_cast<std::int64_t>(*wanted.ttl_ms);
      }
      blocks.push_back(wanted);
      const bool fresh = model_.commit(lease, (*slots)[i], k, block);
      expected.push_back(fresh ? CommitStatus::committed : CommitStatus::duplicate);
    }
    const auto statuses = rig_.commit(*cache_, allocation->lease, blocks);
    ASSERT_TRUE(statuses) << statuses.error().detail;
    ASSERT_EQ(*statuses, expected);
    if (pick(2) == 0) end(lease);
  }

  void end(int lease) {
    const std::uint64_t held = model_.leases.at(lease).held.size();
    ASSERT_EQ(cache_->release(ids_.at(lease), {}).value(), held);
    model_.end(lease);
    ids_.erase(lease);
  }

  void match(bool pinned) {
    std::vector<int> list = chain(pick(20), 6);
    if (pick(10) == 0) list.insert(list.begin(), list.front());  // a key twice
    const std::uint32_t ms = pinned ? lease_ms() : 0;
    const auto expected = model_.match(list);
    const auto before = cache_->stats();
    const MatchResult result = rig_.match(*cache_, names(list), ms);
    ASSERT_EQ(result.blocks.size(), expected.size());
    const auto after = cache_->stats();
    std::uint64_t counted = after.miss_blocks - before.miss_blocks;
    for (Tier tier : kTiers) {
      counted += after.tiers[index_of(tier)].hit_blocks - before.tiers[index_of(tier)].hit_blocks;
    }
    ASSERT_EQ(counted, list.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(result.blocks[i].tier, model_.copies.at(expected[i]).tier);
    }
    ASSERT_EQ(result.lease.has_value(), pinned && !expected.empty());
    if (result.lease) {
      const int lease = open(*result.lease, ms);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        model_.hold(lease, expected[i]);
        handles_[lease].push_back(result.blocks[i]);
      }
    } else {
      for (auto copy = expected.rbegin(); copy != expected.rend(); ++copy) model_.touch(*copy);
    }
  }

  void release() {
    const auto lease = some_lease();
    if (!lease) return;
    const auto handles = handles_.find(*lease);
    if (pick(2) == 0 || handles == handles_.end() ||
        handles->second.size() != model_.leases.at(*lease).held.size()) {
      return end(*lease);
    }
    // Some of a match's blocks, by handle.
    std::vector<BlockHandle> some;
    std::vector<NaiveModel::CopyId> copies;
    std::vector<BlockHandle> kept;
    for (std::size_t i = 0; i < handles->second.size(); ++i) {
      if (pick(2) == 0) {
        kept.push_back(handles->second[i]);
        continue;
      }
      some.push_back(handles->second[i]);
      copies.push_back(model_.leases.at(*lease).held[i]);
    }
    if (some.empty()) return;
    const auto released = cache_->release(ids_.at(*lease), {.blocks = some});
    ASSERT_TRUE(released) << released.error().detail;
    ASSERT_EQ(*released, some.size());
    // The lease may hold a slot twice. Either hold may go.
    model_.release(*lease, copies);
    handles_.erase(*lease);
  }

  void renew() {
    const auto lease = some_lease();
    if (!lease) return;
    const std::uint32_t ms = lease_ms();
    ASSERT_EQ(cache_->renew(ids_.at(*lease), ms).value(), rig_.clock.unix_ms() + ms);
    model_.leases.at(*lease).expires_ms = now_ms_ + ms;
  }

  void advance() {
    const int ms = 1 + pick(3'000);
    rig_.clock.advance_ms(ms);
    now_ms_ += ms;
    model_.set_time(now_ms_);
    rig_.manager->tick();
    for (auto at = ids_.begin(); at != ids_.end();) {
      if (model_.leases.contains(at->first)) {
        ++at;
        continue;
      }
      const auto gone = cache_->renew(at->second, 1);
      ASSERT_FALSE(gone);
      ASSERT_EQ(gone.error().code, ErrorCode::lease_expired);
      at = ids_.erase(at);
    }
  }

  void transfer() {
    const std::vector<int> list = chain(pick(20), 1 + pick(4));
    const Tier to = some_tier();
    const bool move = pick(2) == 0;
    if (model_.reads_from_two_tiers(list, to)) return;
    const auto id = cache_->transfer({.keys = names(list), .to = to, .move = move});
    rig_.scheduler->wait_idle();
    const bool known =
        std::all_of(list.begin(), list.end(), [&](int k) { return model_.present(k); });
    if (!known) {
      ASSERT_FALSE(id);
      ASSERT_EQ(id.error().code, ErrorCode::unknown_key);
      return;
    }
    const auto arrived = model_.transfer(list, to, move);
    ASSERT_EQ(id.has_value(), arrived.has_value());
    if (!id) {
      ASSERT_EQ(id.error().code, ErrorCode::no_capacity);
      return;
    }
    const TransferStatus status = rig_.manager->transfer(*id).value();
    ASSERT_EQ(status.state, *arrived ? TransferState::done : TransferState::failed);
    ASSERT_EQ(status.blocks_done + status.failures.size(), list.size());
    if (*arrived) {
      for (int k : list) ASSERT_TRUE(is_in(*cache_, to, name(k)));
    }
    for (const auto& failure : status.failures) {
      ASSERT_EQ(failure.error.code, ErrorCode::no_capacity);
    }
  }

  void evict() {
    const std::vector<int> list = chain(pick(20), 1 + pick(4));
    const Tier tier = some_tier();
    ASSERT_TRUE(rig_.evict(*cache_, names(list), tier));
    model_.evict(list, tier);
  }

  // True if clearing the tier would cut off blocks that stay. Their order of eviction then depends
  // on the order of slots, which the model does not have.
  bool would_cut_off(Tier tier) const {
    const auto stays = [&](int k) {
      return std::ranges::any_of(kTiers, [&](Tier each) {
        const auto copy = model_.copy(k, each);
        return copy && (each != tier || model_.copies.at(*copy).pins > 0);
      });
    };
    return std::ranges::any_of(model_.present_in(tier), [&](int k) {
      if (stays(k)) return false;
      return std::ranges::any_of(model_.blocks, [&](const auto& block) {
        return block.second.parent == k && stays(block.first);
      });
    });
  }

  void clear() {
    const Tier tier = some_tier();
    if (would_cut_off(tier)) return;
    std::uint64_t gone = 0;
    for (int k : model_.present_in(tier)) {
      const auto copy = model_.copy(k, tier);
      if (model_.copies.at(*copy).pins > 0) continue;
      model_.drop(*copy);
      ++gone;
    }
    ASSERT_EQ(cache_->clear(tier).value().evicted, gone);
  }

  void erase() {
    const int k = pick(kKeys);
    const auto erased = cache_->erase(name(k));
    if (!model_.present(k)) {
      ASSERT_EQ(erased.error().code, ErrorCode::unknown_key);
      return;
    }
    bool leased = false;
    for (Tier tier : tiers_) {
      const auto copy = model_.copy(k, tier);
      leased = leased || (copy && model_.copies.at(*copy).pins > 0);
    }
    ASSERT_EQ(erased.has_value(), !leased);
    if (!leased) model_.drop_key(k);
  }

  // Ends all leases first, so that the model's slots match the cache's.
  void resize() {
    const Tier tier = some_tier();
    if (tier == Tier::device) return;
    while (!ids_.empty()) end(ids_.begin()->first);
    const int blocks = 1 + pick(20);
    // If the lower tier lacks room for all of them, the order in which they leave is random.
    const auto excess = static_cast<int>(model_.present_in(tier).size()) - blocks;
    if (const auto below = model_.lower(tier); below && model_.free(*below) < excess) return;
    model_.resize(tier, blocks);
    CacheChange change;
    change.num_blocks[index_of(tier)] = static_cast<std::uint32_t>(blocks);
    const auto changed = cache_->change(change, [](const CacheConfig&) { return Result<>(); });
    ASSERT_TRUE(changed) << changed.error().detail;
    rig_.scheduler->wait_idle();
    rig_.manager->tick();
    ASSERT_EQ(cache_->stats().tiers[index_of(tier)].capacity_blocks,
              static_cast<std::uint64_t>(blocks));
  }

  void metadata() {
    const int k = pick(kKeys);
    const auto read = cache_->metadata(name(k));
    ASSERT_EQ(read.has_value(), model_.present(k));
    if (!read) return;
    ASSERT_EQ(*read, model_.blocks.at(k).metadata);
    model_.blocks.at(k).metadata = "{\"n\":" + std::to_string(pick(1000)) + "}";
    ASSERT_TRUE(cache_->set_metadata(name(k), model_.blocks.at(k).metadata));
  }

  void read() { compare_bytes(pick(kKeys)); }

  void compare_bytes(int k) {
    const auto bytes = rig_.read(*cache_, name(k));
    ASSERT_EQ(bytes.has_value(), model_.present(k)) << "key " << k;
    if (!bytes) return;
    ASSERT_EQ(*bytes, model_.blocks.at(k).bytes) << "key " << k;
    model_.touch(*model_.highest(k));
  }

  std::mt19937_64 random_;
  Rig rig_;
  const CacheConfig config_;
  const std::shared_ptr<Cache> cache_ = rig_.cache(config_);
  NaiveModel model_;
  std::vector<Tier> tiers_;
  std::int64_t now_ms_ = 0;
  int last_lease_ = 0;
  std::map<int, LeaseId> ids_;
  std::map<int, std::vector<BlockHandle>> handles_;  // of leases that matched and released nothing
};

class Model : public ::testing::TestWithParam<Setup> {};

TEST_P(Model, AgreesWithTheCacheAfterEveryOperation) {
  const char* given = std::getenv("CAIRN_TEST_SEED");
  const std::uint64_t seed = given ? std::stoull(given) : std::random_device()();
  std::cout << "CAIRN_TEST_SEED=" << seed << '\n';
  Walk walk(GetParam(), seed);
  for (int i = 0; i < kOperations; ++i) {
    SCOPED_TRACE("operation " + std::to_string(i) + ", CAIRN_TEST_SEED=" + std::to_string(seed));
    ASSERT_NO_FATAL_FAILURE(walk.step());
    ASSERT_NO_FATAL_FAILURE(walk.compare());
    if (i % 100 == 0) {
      ASSERT_NO_FATAL_FAILURE(walk.compare_bytes());
    }
  }
  ASSERT_NO_FATAL_FAILURE(walk.end_all());
}

INSTANTIATE_TEST_SUITE_P(
    Cache, Model,
    ::testing::Values(
        Setup{"one_tier", {.pinned = 16}, OffloadMode::on_evict, false},
        Setup{"two_tiers", {.device = 10, .disk = 14}, OffloadMode::on_evict, true},
        Setup{"three_tiers", {.device = 8, .pinned = 10, .disk = 16}, OffloadMode::on_evict, false},
        Setup{"three_tiers_separate",
              {.device = 8, .pinned = 10, .disk = 16},
              OffloadMode::on_evict,
              true},
        Setup{
            "three_tiers_never", {.device = 8, .pinned = 10, .disk = 16}, OffloadMode::never, true},
        Setup{
            "narrow_below", {.device = 16, .pinned = 4, .disk = 3}, OffloadMode::on_evict, false}),
    [](const auto& setup) { return setup.param.name; });

}  // namespace
}  // namespace cairn::testing
