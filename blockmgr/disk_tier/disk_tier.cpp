#include "blockmgr/disk_tier/disk_tier.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "blockmgr/disk/disk_place.hpp"
#include "blockmgr/disk/learnt_file.hpp"
#include "blockmgr/disk/pins_file.hpp"
#include "blockmgr/disk_tier/disk_checkpoint.hpp"
#include "blockmgr/disk_tier/disk_recovery.hpp"
#include "blockmgr/disk_tier/kept_pins.hpp"
#include "blockmgr/index/config_check.hpp"
#include "transport/io/slot_file_label.hpp"

namespace cairn {
namespace {

void log_damage(Logger& log, const std::string& cache, const std::string& what) {
  log.warning("a part of a disk tier is damaged", {{"cache", cache}, {"part", what}});
}

// Restores what an earlier run learned about the workload.
void take_learnt(CacheCore& core) {
  auto learnt = read_learnt({core.disk_files.front(), core.slot_contents->file_id()});
  if (!learnt && learnt.error().code == ErrorCode::not_found) return;
  bool is_taken = false;
  if (learnt) {
    CacheLock locked(core, LockUse::upkeep);
    is_taken = locked->store.take_learnt(*learnt);
  }
  if (is_taken) return;
  core.services->log.warning(
      "ignored what an earlier run learned for the order of eviction",
      {{"cache", core.config.name},
       {"why", learnt ? "it is for another order or version" : learnt.error().detail}});
}

// A kill may have left pages that no block takes, and so does a tier that had no codec.
void free_other_pages(CacheCore& core) {
  std::vector<SlotTail> blocks;
  SlotContents& contents = *core.slot_contents;
  {
    CacheLock locked(core, LockUse::upkeep);
    const SlotPool& slots = locked->store.pool(Tier::disk);
    for (SlotNumber slot = 0; slot < slots.end(); ++slot) {
      if (slots[slot].life == SlotLife::free) continue;
      const std::uint32_t units = slots.units_in(slot);
      blocks.push_back({slot, units, contents.pages(slot, units)});
    }
  }
  const auto punched =
      punch_all_but(core.services->scheduler.disk(), core.slots(Tier::disk), blocks);
  if (!punched) {
    core.services->log.warning("cannot give unused pages of a disk tier to the file system",
                               {{"cache", core.config.name}, {"detail", punched.error().detail}});
  }
  contents.set_pages(0, contents.num_slots(), 0);
  for (const SlotTail& block : blocks) contents.add_pages(block.slot, block.kept_pages);
}

}  // namespace

std::string disk_path(const CacheConfig& config) {
  const auto& disk = config.tiers[index_of(Tier::disk)];
  return disk ? disk->path : std::string();
}

bool overlap(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto x = a.lexically_normal();
  const auto y = b.lexically_normal();
  const auto [at_x, at_y] = std::mismatch(x.begin(), x.end(), y.begin(), y.end());
  return at_x == x.end() || at_y == y.end();
}

std::vector<std::filesystem::path> disk_roots(const BlockManagerOptions& options) {
  if (!options.disk.folders.empty()) return options.disk.folders;
  return {options.data_dir / "disk"};
}

namespace {

// The highest slot count in the labels of files that have blocks of this cache's shape; 0 if there
// are none.
std::uint32_t slots_there(const CacheConfig& config,
                          const std::vector<std::filesystem::path>& files) {
  const LayoutConfig wanted = tier_shape(config, Tier::disk);
  std::uint64_t most = 0;
  for (const auto& file : files) {
    const auto found = find_slot_file_label(file);
    if (!found || !*found || (*found)->label.owner != config.name) continue;
    if ((*found)->label.shapes_hash != shapes_hash(config)) continue;
    LayoutConfig shape = (*found)->label.shape;
    const std::uint64_t num_slots = std::exchange(shape.num_blocks, wanted.num_blocks);
    shape.alignment = wanted.alignment;  // a label does not store it
    if (shape == wanted) most = std::max<std::uint64_t>(most, num_slots);
  }
  return static_cast<std::uint32_t>(most);
}

}  // namespace

Result<DiskTier> open_disk_tier(const CacheConfig& config, const CacheServices& services) {
  const DiskOptions& options = services.options.disk;
  std::vector<std::filesystem::path> files;
  for (const auto& root : disk_roots(services.options)) {
    auto file = prepare_disk_place({root, disk_path(config), options.check_folder});
    if (!file) return std::move(file).error();
    files.push_back(std::move(*file));
  }
  SlotFileOptions slots{.paths = files,
                        .owner = config.name,
                        .shape = tier_shape(config, Tier::disk),
                        .run = slot_sizes(config, Tier::disk).slab_units,
                        .shapes_hash = shapes_hash(config),
                        .replace_other_shape = options.replace_other_shape,
                        .sparse = config.tiers[index_of(Tier::disk)]->codec != Codec::none,
                        .direct = options.direct,
                        .check_every_read = options.checksums};
  const std::uint32_t there = slots_there(config, files);
  const bool grows = there > 0 && there < slots.shape.num_blocks;
  if (there > slots.shape.num_blocks) {
    // Its last blocks leave soon. If the file had a codec, its holes must not be reserved.
    const std::uint64_t step =
        slots.run * std::uint64_t{slots_a_block(*config.tiers[index_of(Tier::disk)])};
    slots.shape.num_blocks = (there + step - 1) / step * step;
    slots.reserve = false;
  }
  auto file = open_slot_file(slots);
  if (!file && grows && file.error().code == ErrorCode::no_capacity) {
    slots.shape.num_blocks = there;
    file = open_slot_file(slots);
  }
  if (!file) return std::move(file).error();
  if (!file->not_direct.empty()) {
    services.log.info("disk tier uses the page cache",
                      {{"cache", config.name}, {"why", file->not_direct}});
  }
  for (const std::string& damage : file->damage) log_damage(services.log, config.name, damage);
  return DiskTier{std::move(files), std::move(*file)};
}

std::vector<PreparedMemory> prepare_for_disk(const BlockLayout& pinned, const std::string& cache,
                                             const CacheServices& services) {
  std::vector<PreparedMemory> prepared;
  for (const RegionView& region : pinned.regions()) {
    auto memory =
        PreparedMemory::of(services.scheduler.disk(), {region.data(), region.size_bytes()});
    if (memory) {
      prepared.push_back(std::move(*memory));
      continue;
    }
    services.log.info("disk I/O uses no registered buffers",
                      {{"cache", cache}, {"why", memory.error().detail}});
    break;
  }
  return prepared;
}

Result<DiskDamageStats> start_disk_tier(CacheCore& core, bool is_new) {
  DiskDamageStats damage;
  bool from_headers = false;
  bool wants_checkpoint = false;
  if (!is_new) {
    auto recovery = recover_disk_tier(core, {*core.journal, core.services->scheduler.disk()});
    if (!recovery) return std::move(recovery).error();
    from_headers = recovery->from_headers;
    // Mended headers also need a checkpoint: it flushes them and deletes the old logs. So do slots
    // beyond the end: if the tier grew again, the next start would restore what was in them.
    wants_checkpoint = from_headers || recovery->mended > 0 || recovery->beyond_end;
    if (recovery->not_mended) {
      core.services->log.warning(
          "could not restore headers that a power cut may have lost",
          {{"cache", core.config.name}, {"detail", recovery->not_mended->detail}});
    }
    for (const std::string& index : recovery->damaged_indexes) {
      log_damage(core.services->log, core.config.name, index);
    }
    if (recovery->damaged_headers > 0) {
      log_damage(core.services->log, core.config.name,
                 std::to_string(recovery->damaged_headers) + " headers of slots");
    }
    damage.indexes = recovery->damaged_indexes.size();
    damage.headers = recovery->damaged_headers;
    core.services->log.info("disk tier recovered",
                            {{"cache", core.config.name},
                             {"blocks", recovery->restored},
                             {"from", from_headers ? "headers" : "checkpoint and log"},
                             {"torn", recovery->torn},
                             {"expired", recovery->expired},
                             {"mended", recovery->mended},
                             {"stale", recovery->stale}});
    take_learnt(core);
    take_pins(core);
    if (core.slot_contents->is_sparse()) free_other_pages(core);
  }
  CAIRN_TRY(core.journal->begin());
  if (const std::string& why = core.journal->why_no_log(); !why.empty()) {
    // A new tier has no blocks, so refusing it loses nothing.
    if (is_new) return Error{ErrorCode::no_capacity, why};
    core.services->log.error(
        "changes of a disk tier are not logged until there is room for its log: what is erased "
        "until then may be back after a kill",
        {{"cache", core.config.name}, {"detail", why}});
  }
  {
    CacheLock locked(core, LockUse::upkeep);
    locked->store.note_changes(*core.journal);
  }
  // A log alone does not contain what the headers did.
  if (wants_checkpoint) checkpoint_disk_tier(core);
  return damage;
}

bool checkpoint_disk_tier(CacheCore& core) {
  auto written = checkpoint(core);
  if (written) return true;
  core.services->log.warning("the index of a disk tier could not be made durable",
                             {{"cache", core.config.name}, {"detail", written.error().detail}});
  return false;
}

void remove_disk_tier(const std::vector<std::filesystem::path>& files) {
  if (files.empty()) return;
  SlotJournal::remove(files.front());
  remove_learnt(files.front());
  remove_pins(files.front());
  std::error_code ignored;
  for (const auto& file : files) std::filesystem::remove(file, ignored);
}

}  // namespace cairn
