#include "tests/simulation/world.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/hex.hpp"
#include "blockmgr/index/config_check.hpp"
#include "blockmgr/remote_tier/remote_value.hpp"
#include "transport/io/slot_file_label.hpp"

namespace cairn::sim {

namespace {

// Full attention, a window and a state, whose blocks have other sizes.
void add_kv_groups(Random& random, CacheConfig& config) {
  KvGroupConfig full{.name = "full", .shape = config.shape};
  KvGroupConfig window{.name = "window",
                       .kind = KvGroupKind::window,
                       .window_tokens = 1 + static_cast<std::uint32_t>(random.below(9)),
                       .shape = config.shape};
  window.shape.num_layers = 1 + random.below(3);
  KvGroupConfig state{.name = "state", .kind = KvGroupKind::state, .shape = config.shape};
  state.shape.outer_dim = 1;
  state.shape.page_size = 1;
  state.shape.num_layers = 1 + random.below(6);
  config.block_tokens = static_cast<std::uint32_t>(config.shape.page_size);
  config.kv_groups = {full, window};
  if (random.once_in(2)) config.kv_groups.push_back(state);
  config.shape = {};
  for (auto& tier : config.tiers) {
    if (!tier) continue;
    tier->layout = LayoutKind::fully_contiguous;
    tier->block_dim = BlockDim::first;
  }
  for (const Tier tier : kTiers) {
    auto& made = config.tiers[index_of(tier)];
    if (made) made->num_blocks = units_for(config, tier, made->num_blocks);
  }
}

// The names of all keys in the store.
Store::Names names_in_store(const Oracle& oracle, const CacheConfig& config) {
  Store::Names names;
  for (KeyNumber key = 0; key < oracle.keys(); ++key) {
    const std::uint64_t fingerprint = fingerprint_of(config, oracle.group(key));
    names.emplace("cairn:" + config.name + ":" + to_hex(std::as_bytes(std::span(&fingerprint, 1))) +
                      ":" + to_hex(oracle.name(key).view().bytes()),
                  key);
  }
  return names;
}

}  // namespace

std::uint32_t units_for(const CacheConfig& config, Tier tier, std::uint32_t blocks) {
  const SlotSizes sizes = slot_sizes(config, tier);
  if (!sizes.are_several()) return blocks;
  const std::uint32_t units = blocks * std::ranges::max(sizes.block_units) * 2 / 3;
  return std::max(3u, units / sizes.slab_units + 1) * sizes.slab_units;
}

Setup::Setup(std::uint64_t seed) {
  Random random(Random::mixed(seed ^ 0x5E7095EEDull));
  const auto blocks = [&](std::uint32_t least, std::uint32_t more) {
    return TierConfig{.num_blocks = least + static_cast<std::uint32_t>(random.below(more))};
  };
  config.name = "simulated";
  config.shape = testing::small_shape();
  // Either pieces smaller than a sector, or pieces of several pages.
  if (random.once_in(3)) config.shape.inner_dim = 512;
  if (!random.once_in(3)) config.tiers[index_of(Tier::device)] = blocks(6, 10);
  config.tiers[index_of(Tier::pinned)] = blocks(6, 14);
  if (!random.once_in(8)) config.tiers[index_of(Tier::disk)] = blocks(8, 32);
  for (auto& tier : config.tiers) {
    if (!tier || !random.once_in(2)) continue;
    tier->layout = LayoutKind::layer_separate;
    tier->block_dim = random.once_in(2) ? BlockDim::first : BlockDim::second;
  }
  if (auto& disk = config.tiers[index_of(Tier::disk)]) {
    disk->layout = LayoutKind::fully_contiguous;
    disk->block_dim = BlockDim::first;
    if (random.once_in(2)) disk->codec = Codec::bytes;
  }
  const OffloadMode modes[] = {OffloadMode::on_evict, OffloadMode::on_commit, OffloadMode::never};
  config.offload = random.once_in(3) ? modes[random.below(3)] : OffloadMode::on_evict;
  config.default_lease_ms = 1'000;
  scheduler.workers = 1 + static_cast<std::uint32_t>(random.below(2));
  scheduler.disk_threads = 1 + static_cast<std::uint32_t>(random.below(2));
  scheduler.disk_parts = 1 + static_cast<std::uint32_t>(random.below(8));
  scheduler.staging_bytes = (1 + random.below(3)) << 20;
  manager.disk.direct = false;
  manager.disk.checkpoint_period_ms = 0;  // made by steps, not by a thread
  if (random.once_in(4)) manager.disk.admission = DiskAdmission::second_use;
  if (random.once_in(3)) manager.disk.scrub_bytes_per_s = 1 << 20;
  if (random.once_in(6)) manager.disk.write_bytes_per_s = 1 << 16;
  if (random.once_in(4)) {
    PressureConfig pressure;
    for (PressureReaction& reaction : pressure.reactions) {
      reaction = {.kind = PressureReaction::Kind::shrink, .target_use = 0.5};
    }
    config.pressure[index_of(Tier::pinned)] = pressure;
  }
  if (random.once_in(2)) manager.lock_step = 1 + static_cast<std::uint32_t>(random.below(24));
  manager.staging_bytes = (1 + random.below(3)) << 18;
  device.visibility = random.once_in(2) ? MemoryVisibility::system : MemoryVisibility::explicit_dma;
  faulty = random.once_in(3);
  if (faulty) {
    faults = {.fails_once_in = 50 + random.below(200), .full_once_in = 50 + random.below(200)};
    device.fails_once_in = 50 + random.below(200);
  }
  config.eviction = random.once_in(3) ? EvictionKind::lru : EvictionKind::class_hazard;
  if (random.once_in(3)) add_kv_groups(random, config);
  pins = random.once_in(3);
  if (pins && random.once_in(2)) config.pins.max_share = 0.9;
  if (random.once_in(3)) add_shared_tier(random);
}

void Setup::add_shared_tier(Random& random) {
  using Write = RemoteTierConfig::Write;
  const Write writes[] = {Write::on_commit, Write::on_evict, Write::second_use};
  config.shared = RemoteTierConfig{.write = writes[random.below(3)]};
  if (random.once_in(2)) config.shared->codec = Codec::bytes;
  // The simulated store keeps its values for longer than a run lasts.
  if (random.once_in(3)) config.shared->ttl_ms = 24ull * 3'600 * 1'000;
  manager.has_remote_store = {true, true};
  if (random.once_in(3)) {
    config.shared_far =
        RemoteTierConfig{.store = RemoteTierConfig::Store::s3,
                         .write = random.once_in(2) ? Write::on_commit : Write::second_use,
                         .codec = random.once_in(2) ? Codec::bytes : Codec::none};
  }
  // The blocks of a fetch wait for each other's staging: there are two, however few bytes.
  if (random.once_in(2)) manager.staging_bytes = 1;
  if (!random.once_in(2)) return;
  store_faults = {.fails_once_in = 20 + random.below(100),
                  .flips_once_in = 20 + random.below(100),
                  .loses_once_in = 50 + random.below(200)};
}

World::World(Parts parts)
    : parts_(std::move(parts)),
      device_(parts_.queue, parts_.setup.device),
      disk_(parts_.queue),
      log_(parts_.queue, STDERR_FILENO, LogLevel::error) {
  scheduler_ = std::make_unique<TransferScheduler>(
      device_, disk_, parts_.queue, parts_.setup.scheduler,
      std::make_unique<QueuedTasks>(
          parts_.queue, QueuedTasks::Options{.workers = parts_.setup.scheduler.workers +
                                                        parts_.setup.scheduler.disk_threads}));
  BlockManagerOptions options = parts_.setup.manager;
  options.data_dir = parts_.folder;
  options.failpoint = parts_.failpoint;
  manager_ = std::make_unique<BlockManager>(device_, *scheduler_, parts_.queue, log_, options);
  parts_.oracle.begin_life(manager_->events(), 0, parts_.setup.faulty);
  if (parts_.config.shared) {
    RemoteTiers::Beyond beyond;
    const auto add_store = [&](const RemoteTierConfig& config, Store::Values& values) {
      beyond.stores[static_cast<std::size_t>(config.store)] = std::make_unique<Store>(
          Store::Parts{.queue = parts_.queue,
                       .oracle = parts_.oracle,
                       .values = values,
                       .names = names_in_store(parts_.oracle, parts_.config),
                       .faults = parts_.setup.store_faults,
                       .is_far = &values == &parts_.far_store});
    };
    add_store(*parts_.config.shared, parts_.store);
    if (parts_.config.shared_far) add_store(*parts_.config.shared_far, parts_.far_store);
    remote_tiers_ = std::make_unique<RemoteTiers>(*manager_, std::move(beyond), parts_.queue,
                                                  scheduler_->executor(), RemoteTierOptions{});
  }
  make_cache(parts_.config);
  disk_.set_faults(parts_.setup.faults);
}

void World::make_cache(const CacheConfig& config) {
  auto created = manager_->create_cache(config);
  parts_.oracle.look();
  if (!created) {
    parts_.oracle.finding().report("start: " + created.error().detail);
    return;
  }
  cache_ = created->cache;
  clients_ = std::make_unique<Clients>(
      Clients::Parts{.queue = parts_.queue,
                     .oracle = parts_.oracle,
                     .manager = *manager_,
                     .cache = cache_,
                     .remote_tier = remote_tiers_ ? remote_tiers_->of(cache_) : nullptr});
}

void World::make_anew(const CacheConfig& config) {
  clients_.reset();
  cache_.reset();
  const auto dropped = manager_->drop_cache(config.name, true);
  if (!dropped) return parts_.oracle.finding().report("drop: " + dropped.error().detail);
  const EventRing& ring = manager_->events();
  parts_.oracle.begin_life(ring, ring.next_id(), parts_.setup.faulty);
  before_ = {};
  make_cache(config);
}

void World::end_clients() {
  clients_->let_go();
  clients_.reset();
  parts_.queue.drain();
  // Otherwise the stop does it, unseen.
  settle();
}

void World::settle() {
  for (std::size_t i = 0; i < kNumTiers; ++i) {
    tick();
    parts_.queue.drain();
  }
}

void World::tick() {
  manager_->tick();
  if (remote_tiers_) remote_tiers_->poll();
}

World::~World() {
  clients_.reset();
  remote_tiers_.reset();
  cache_.reset();
  manager_.reset();
  parts_.oracle.end_life();
  scheduler_.reset();
  parts_.queue.drain();
}

void World::check_file(std::uint64_t room_bytes) const {
  struct ::stat status {};
  const std::filesystem::path file = parts_.folder / "disk" / parts_.config.name;
  CAIRN_ASSERT(::stat(file.c_str(), &status) == 0, "the disk tier has no file");
  constexpr std::uint64_t kStatBlockBytes = 512;
  const std::uint64_t taken = static_cast<std::uint64_t>(status.st_blocks) * kStatBlockBytes;
  if (taken <= room_bytes + kSlotFileLabelBytes) return;
  parts_.oracle.finding().report("at rest: the disk's file takes " + std::to_string(taken) +
                                 " bytes of " + std::to_string(room_bytes));
}

void World::check_evictions() {
  if (!started()) return;
  const CacheStats now = cache_->stats();
  const Oracle::Tiers cut = parts_.oracle.take_cut_chains();
  const Oracle::PerTier outlasted = parts_.oracle.take_outlasted();
  for (const Tier tier : kTiers) {
    const std::size_t i = index_of(tier);
    std::uint64_t others = 0;
    for (std::size_t r = 0; r < kNumEvictionReasons; ++r) {
      if (static_cast<EvictionReason>(r) == EvictionReason::capacity) continue;
      others += now.tiers[i].evictions[r] - before_.tiers[i].evictions[r];
    }
    const bool same_size = now.tiers[i].capacity_blocks == before_.tiers[i].capacity_blocks;
    const bool offloads =
        (parts_.config.offload == OffloadMode::on_evict && tier != Tier::disk) ||
        (parts_.config.shared && parts_.config.shared->write == RemoteTierConfig::Write::on_evict);
    if (cut[i] && others == 0 && same_size && !offloads) {
      parts_.oracle.finding().report("a block was evicted from " + std::string(to_string(tier)) +
                                     " before its child");
    }
    const auto before = std::exchange(unheld_before_[i], unheld(tier));
    // Skips offloads, which were decided earlier, and a tier that shrinks, where its pressure
    // decides.
    const bool went_for_room =
        now.tiers[i].evictions[static_cast<std::size_t>(EvictionReason::capacity)] >
        before_.tiers[i].evictions[static_cast<std::size_t>(EvictionReason::capacity)];
    if (!went_for_room || others > 0 || !same_size || offloads) continue;
    for (const KeyNumber key : outlasted[i]) {
      const auto was = before.find(key);
      const auto is = unheld_before_[i].find(key);
      if (was == before.end() || is == unheld_before_[i].end() || was->second != is->second) {
        continue;
      }
      parts_.oracle.finding().report(parts_.oracle.text(key) + " stays in " +
                                     std::string(to_string(tier)) +
                                     ", unreachable, while a reachable block was evicted");
    }
  }
  before_ = now;
}

World::Unheld World::unheld(Tier tier) const {
  Unheld blocks;
  if (!parts_.config.tiers[index_of(tier)]) return blocks;
  bool any = false;
  for (KeyNumber key = 0; key < parts_.oracle.keys() && !any; ++key) {
    any = parts_.oracle.present_in(key, tier) && !parts_.oracle.is_reached(key);
  }
  if (!any) return blocks;
  const auto listed = cache_->list({.tier = tier, .state = SlotState::evictable, .limit = 1'000});
  if (!listed) return blocks;
  for (const BlockInfo& block : listed->blocks) {
    if (block.key) blocks.emplace(parts_.oracle.number(*block.key), block.handle);
  }
  return blocks;
}

void World::check_at_rest() {
  Finding& finding = parts_.oracle.finding();
  const auto expect = [&](bool good, const std::string& what) {
    if (!good) finding.report("at rest: " + what);
  };
  const CacheStats stats = cache_->stats();
  expect(clients_->waiting() == 0, std::to_string(clients_->waiting()) + " calls have not ended");
  expect(stats.leases == 0, std::to_string(stats.leases) + " leases are left");
  for (const Tier tier : kTiers) {
    const TierStats& of = stats.tiers[index_of(tier)];
    if (!of.present) continue;
    const std::string name(to_string(tier));
    const auto count = [&](SlotState state) { return of.blocks[static_cast<std::size_t>(state)]; };
    expect(of.leased_blocks == 0, "leased blocks are left in " + name);
    expect(count(SlotState::allocated) == 0, "allocated slots are left in " + name);
    expect(count(SlotState::committed) == 0, "pins are left in " + name);
    const SlotSizes sizes = slot_sizes(cache_->config(), tier);
    std::uint64_t used = count(SlotState::evictable);
    if (sizes.are_several()) {
      used = 0;
      for (std::size_t i = 0; i < of.kv_groups.size(); ++i) {
        used += of.kv_groups[i].blocks * sizes.units_of(static_cast<KvGroupNumber>(i));
      }
    }
    const std::uint64_t units = count(SlotState::free) + used;
    const TierConfig& tier_config = *cache_->config().tiers[index_of(tier)];
    if (tier_config.codec != Codec::none) {
      // Shorter blocks leave room for more, and the rest of a slot's room is rounded off.
      expect(count(SlotState::free) <= of.capacity_blocks &&
                 (sizes.are_several() || units + 1 >= of.capacity_blocks),
             "the slots of " + name + " do not add up");
      if (!parts_.setup.faulty) check_file(of.capacity_blocks * sizes.unit_bytes);
    } else {
      // The end of a slab may be too small for a block.
      expect(sizes.are_several() ? units <= of.capacity_blocks : units == of.capacity_blocks,
             "the slots of " + name + " do not add up");
    }
    expect(count(SlotState::evictable) == parts_.oracle.count_in(tier),
           name + " holds another number of keys than the events reported");
    for (const Tier to : kTiers) {
      expect(stats.routes[index_of(tier)][index_of(to)].in_flight_blocks == 0,
             "blocks are on their way from " + name);
    }
  }
  const TransferSchedulerStats scheduler = scheduler_->stats();
  expect(scheduler.queued == 0 && scheduler.running == 0, "the scheduler has jobs");
  expect(scheduler.submitted == scheduler.done + scheduler.failed + scheduler.cancelled,
         "the scheduler's counts do not add up");
  for (const auto& list : {scheduler_->allocators(), manager_->allocators()}) {
    for (const NamedAllocator& allocator : list) {
      if (allocator.allocator.ends_with("staging")) {
        expect(allocator.now.allocated_bytes == 0,
               std::string(allocator.allocator) + " is still lent");
      }
    }
  }
  if (!parts_.setup.faulty && !parts_.setup.store_faults.any()) parts_.oracle.check_shared();
  const auto transfers = manager_->transfer_counts();
  expect(transfers.queued == 0 && transfers.running == 0, "transfers have not ended");
}

void World::check_all_bytes(const std::set<KeyNumber>& must) {
  Oracle& oracle = parts_.oracle;
  for (KeyNumber key = 0; key < oracle.keys(); ++key) {
    oracle.look();
    const bool needed = must.contains(key);
    if (needed && !oracle.must_be_found(key, parts_.queue.now())) {
      return oracle.finding().report(oracle.text(key) + " was lost");
    }
    auto reader = cache_->peek(oracle.name(key));
    if (reader ? !oracle.present(key) : oracle.must_be_found(key, parts_.queue.now())) {
      return oracle.finding().report(oracle.text(key) +
                                     " is readable but not present, or the reverse");
    }
    if (!reader) continue;
    const auto ended = std::make_shared<bool>(false);
    reader->fetch([&oracle, key, needed, ended](Result<std::span<const iovec>> bytes) {
      *ended = true;
      if (bytes) {
        oracle.check(key, *bytes, "read at rest");
      } else if (needed) {
        oracle.finding().report(oracle.text(key) + " was lost: " + bytes.error().detail);
      }
    });
    while (!*ended) parts_.queue.step_for("a read at rest");
  }
}

}  // namespace cairn::sim
