#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "blockmgr/eviction/policy.hpp"
#include "blockmgr/index/types.hpp"
#include "layouts/geometry.hpp"
#include "memory/exported_memory.hpp"

namespace cairn {

// Where a tier lies in memory that more than one process maps.
struct TierMemory {
  ExportedMemory memory;
  // Where in it the regions are; empty, of an import: one after the other, from its first aligned
  // byte.
  std::vector<RegionView::Part> regions = {};
  struct Strides {
    std::uint64_t block_bytes = 0;
    std::uint64_t layer_bytes = 0;
    std::uint64_t outer_bytes = 0;
    friend bool operator==(const Strides&, const Strides&) = default;
  };
  std::optional<Strides> strides = {};  // of an import: where told, they must be the layout's
  // Of an import: memory.file is the one of this number among those that came with the request.
  std::optional<std::uint32_t> descriptor = {};

  friend bool operator==(const TierMemory&, const TierMemory&) = default;
};

struct TierConfig {
  std::uint32_t num_blocks = 0;
  LayoutKind layout = LayoutKind::fully_contiguous;
  BlockDim block_dim = BlockDim::first;  // of layer_separate
  int device_id = 0;                     // device: whose memory; pinned: the device it serves
  bool numa_aware = false;               // pinned
  std::string path = {};  // disk: relative to the data directory; empty: the cache's name
  std::optional<TierMemory> import = {};  // device, pinned; nothing: memory of the server's own
  bool by_descriptor = false;             // device, not imported: DeviceRuntime::DeviceOptions
  bool unified = false;  // device, neither of the two: memory that moves to who uses it

  friend bool operator==(const TierConfig&, const TierConfig&) = default;
};

enum class OffloadMode : std::uint8_t {
  on_evict,   // a block leaving a tier is moved to the next
  on_commit,  // a committed block is copied to every lower tier
  never,      // a block leaving a tier is gone
};
std::string_view to_string(OffloadMode mode);

enum class PressureLevel : std::uint8_t { normal, elevated, warning, critical, out_of_memory };
inline constexpr std::size_t kNumPressureLevels = 5;
std::string_view to_string(PressureLevel level);

// What happens when a tier enters a level on the way up, or fills up to its mark. A callback is
// told of the way down too. `normal` has none.
struct PressureReaction {
  enum class Kind : std::uint8_t { none, shrink, callback } kind = Kind::none;
  // shrink: when the slots in use reach the level's mark, evict (offloading as the cache does)
  // until at most this share is in use
  double target_use = 0.0;

  friend bool operator==(const PressureReaction&, const PressureReaction&) = default;
};

// Watermarks of a tier, as shares of its slots. A level is reached by slots that are neither free
// nor evictable, a `shrink` by slots that are not free: see PressureGauge. Out of memory is no
// share: nothing is free and nothing can be evicted.
struct PressureConfig {
  double elevated = 0.80;
  double warning = 0.90;
  double critical = 0.97;
  std::array<PressureReaction, kNumPressureLevels> reactions;

  friend bool operator==(const PressureConfig&, const PressureConfig&) = default;
};

// What the leases of a cache may hold all together, whoever they belong to.
struct CacheQuota {
  // A block as often as it is held; nothing: as BlockManagerOptions says.
  std::optional<std::uint32_t> max_leased_blocks = {};

  friend bool operator==(const CacheQuota&, const CacheQuota&) = default;
};

// Where else a cache's blocks are: in a store that many servers share.
struct SharedConfig {
  enum class Placement : std::uint8_t {
    values,   // the blocks themselves
    holders,  // who has them; they are read from there
  } placement = Placement::values;
  // When a block goes there.
  enum class Write : std::uint8_t {
    on_commit,
    on_evict,    // when it makes room and no other copy of it is in the cache
    second_use,  // when a match finds it
  } write = Write::on_commit;
  std::string name_space = {};  // servers share what is in one; empty: the cache's name
  std::uint64_t ttl_ms = 0;     // begins anew with each use; 0: as long as the store keeps it

  friend bool operator==(const SharedConfig&, const SharedConfig&) = default;
};

struct CacheConfig {
  std::string name = {};
  LayoutConfig shape;  // num_blocks is the tiers' affair and ignored here
  std::array<std::optional<TierConfig>, kNumTiers> tiers;
  OffloadMode offload = OffloadMode::on_evict;
  EvictionKind eviction = kDefaultEviction;
  std::uint32_t default_lease_ms = 30'000;  // max_lease_ms bounds it where it is used
  // Of a tier; nothing: the server's.
  std::array<std::optional<PressureConfig>, kNumTiers> pressure = {};
  CacheQuota quota = {};
  std::optional<SharedConfig> shared = {};

  friend bool operator==(const CacheConfig&, const CacheConfig&) = default;
};

// What may be changed of a cache that is used; nothing: it stays.
struct CacheChange {
  std::optional<OffloadMode> offload = {};
  std::optional<EvictionKind> eviction = {};
  std::optional<std::uint32_t> default_lease_ms = {};
  std::array<std::optional<PressureConfig>, kNumTiers> pressure = {};
  std::optional<CacheQuota> quota = {};  // in place of the one before
  std::array<std::optional<std::uint32_t>, kNumTiers> num_blocks = {};  // not of the device
};

struct PressureEvent {
  std::string cache = {};
  Tier tier = Tier::device;
  PressureLevel from = PressureLevel::normal;
  PressureLevel to = PressureLevel::normal;
};

// Which blocks leaving memory are worth a write to disk. What a client asks for by name is always
// written.
enum class DiskAdmission : std::uint8_t {
  always,
  second_use,  // those that were used again after they were committed
};

// How the disk tiers of all caches are kept.
struct DiskOptions {
  // Where the files lie, a cache's slots dealt out over them; none: data_dir/disk.
  std::vector<std::filesystem::path> folders = {};
  bool direct = true;     // past the page cache, where the file system can
  bool checksums = true;  // false: only the first read after a restart is checked
  // A slot file that holds blocks of another shape is made anew, empty, instead of refused.
  bool replace_other_shape = false;
  // Asked before a slot file in a folder is opened or made; what it refuses keeps the cache away.
  std::function<Result<>(const std::filesystem::path& folder)> check_folder = {};
  // How often the index of a tier that changed is made durable; 0: only when asked, and at the end.
  std::uint32_t checkpoint_period_ms = 30'000;
  DiskAdmission admission = DiskAdmission::always;
  // Of all caches, for what is offloaded: flash wears out by what is written. 0: no limit.
  std::uint64_t write_bytes_per_s = 0;
  // What lies on disk is read at this rate, when the engine has nothing else waiting, and compared
  // with its checksum. 0: not at all.
  std::uint64_t scrub_bytes_per_s = 0;
};

// The bounds of the block manager, for all caches together unless said otherwise.
struct BlockManagerOptions {
  std::filesystem::path data_dir;
  DiskOptions disk;
  bool has_shared_store = false;  // without one no cache has a shared tier
  bool is_advertised = false;     // other servers can be told how to reach this one
  // Files that a cache may import lie directly in one of these; none: nothing is imported by path.
  std::vector<std::filesystem::path> import_folders = {};
  // Host memory of engines that agents and imported tiers may lie in, all together; 0: half of what
  // the machine, or the control group of the process, has left at the start.
  std::uint64_t max_registered_bytes = 0;
  std::array<PressureConfig, kNumTiers> pressure;
  // Runs where a reaction is `callback`, on the thread that crossed the watermark, without locks
  // held.
  std::function<void(const PressureEvent&)> on_pressure;

  // Told of the places where a crash would be worst, so that tests can have one there.
  std::function<void(std::string_view)> failpoint = [](std::string_view) {};

  std::uint32_t max_caches = 64;
  std::uint32_t max_leases = 65'536;  // a cache
  // A cache: what all its leases hold, a block as often as it is held; a single lease may hold what
  // one request names. 64 MiB of lists, and far from where a slot's count of pins would wrap.
  std::uint32_t max_held_blocks = 1u << 24;
  std::uint32_t max_lease_ms = 3'600'000;         // a client that dies is forgotten within the hour
  std::uint32_t max_blocks_per_request = 65'536;  // keys of one call
  std::uint32_t max_transfers = 4'096;            // not yet ended; more are queue_full
  std::uint32_t kept_transfers = 4'096;           // ended ones that can still be asked about
  std::uint32_t max_waiting_allocations = 1'024;  // a tier: allocations that wait for an offload
  // Pinned buffers for reads and writes over HTTP of tiers that the CPU does not reach.
  std::uint64_t staging_bytes = 64ull << 20;
  // Threads that take the pages of pinned tiers before their first use; 0: none. The kernel clears
  // some 1 GB/s a thread.
  unsigned populate_threads = 0;
  std::uint32_t max_metadata_bytes = 4'096;
  // Done for those who wait for slots under one hold of a cache's lock: a slot taken counts 1 and
  // lasts some 30 ns, a copy evicted 4 and some 150 ns.
  std::uint32_t lock_step = 96;
  std::uint32_t max_snapshots = 64;     // a cache
  std::uint32_t max_snapshot_jobs = 4;  // at a time; each is a thread and some MiB of blocks
  // Lets calls to the file system fail, see SnapshotIo; empty: none.
  std::function<int(std::string_view call)> snapshot_file_fault;
  // Events kept for those who listen: 200 bytes each. A second of a busy server.
  std::uint32_t kept_events = 65'536;
  // A cache: what is remembered of blocks that are gone, so that they are known when they come
  // back. Enough for 8 times the blocks of a cache of 655,000.
  std::uint64_t max_history_bytes = 64ull << 20;
  // Where requests are recorded, for simulations: see RequestRecord; empty: nowhere. A request of
  // 100 blocks takes 1.8 KB.
  std::filesystem::path record_path = {};
  std::uint64_t max_record_bytes = 1ull << 30;
};

}  // namespace cairn
