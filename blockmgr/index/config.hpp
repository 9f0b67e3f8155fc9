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
#include "transport/record/medium_codec.hpp"

namespace cairn {

// Memory of a tier that other processes also map.
struct TierMemory {
  ExportedMemory memory;
  // The parts that hold the regions. Empty (imports only): one after the other, from the first
  // aligned byte.
  std::vector<RegionView::Part> regions = {};
  struct Strides {
    std::uint64_t block_bytes = 0;
    std::uint64_t layer_bytes = 0;
    std::uint64_t outer_bytes = 0;
    friend bool operator==(const Strides&, const Strides&) = default;
  };
  std::optional<Strides> strides = {};
  // How the blocks lie in the regions. Exports have it all, but with KV groups each has its shape.
  // If an import says any of it, or strides, they must match the tier.
  std::optional<LayoutKind> layout = {};
  std::optional<BlockDim> block_dim = {};  // of layer_separate
  std::optional<LayoutConfig> shape = {};  // without a number of blocks
  // Exports of caches with KV groups: block n of a group begins at n times its block_bytes.
  struct Group {
    std::string name;
    LayoutConfig shape;
    Strides strides;
    friend bool operator==(const Group&, const Group&) = default;
  };
  std::vector<Group> kv_groups = {};
  // Exports only. It differs after each change of the tier's size.
  std::optional<std::uint64_t> generation = {};
  std::string device_uuid = {};  // of a device's memory; empty: not known
  // Imports only: the index of memory.file among the descriptors sent with the request.
  std::optional<std::uint32_t> descriptor = {};

  friend bool operator==(const TierMemory&, const TierMemory&) = default;
};

struct TierConfig {
  std::uint32_t num_blocks = 0;  // if blocks have several sizes: units, see SlotSizes
  std::uint64_t size_bytes = 0;  // instead of num_blocks: as many as fit; see with_slots()
  LayoutKind layout = LayoutKind::fully_contiguous;
  BlockDim block_dim = BlockDim::first;  // for layer_separate
  int device_id = 0;                     // device: owns the memory; pinned: the device it serves
  bool numa_aware = false;               // pinned
  std::string path = {};      // disk: relative to the data directory; empty: the cache's name
  Codec codec = Codec::none;  // disk
  std::optional<TierMemory> import = {};  // device, pinned; nullopt: the server allocates
  bool by_descriptor = false;             // device, not imported: see DeviceRuntime::DeviceOptions
  bool unified = false;  // device, neither of the two: memory that moves to its user

  friend bool operator==(const TierConfig&, const TierConfig&) = default;
};

enum class OffloadMode : std::uint8_t {
  on_evict,   // an evicted block moves to the next tier
  on_commit,  // a committed block is copied to every lower tier
  never,      // an evicted block is lost
};
std::string_view to_string(OffloadMode mode);

enum class PressureLevel : std::uint8_t { normal, elevated, warning, critical, out_of_memory };
inline constexpr std::size_t kNumPressureLevels = 5;
std::string_view to_string(PressureLevel level);

// The reaction when a tier or a memory pool rises to a level, a tier fills up to the level's mark,
// or either comes back to `normal`. A callback also runs when the level is left.
struct PressureReaction {
  enum class Kind : std::uint8_t {
    none,
    shrink,
    callback,
    empty_cache,  // of a device tier: its device's cached memory is returned
  } kind = Kind::none;
  static constexpr std::array<std::string_view, 4> kWords = {"none", "shrink", "callback",
                                                             "empty_cache"};
  // shrink of a tier: the cache evicts (and offloads as configured) until at most this share of the
  // slots is in use. A pool gives back all memory that it keeps for reuse.
  double target_use = 0.0;

  friend bool operator==(const PressureReaction&, const PressureReaction&) = default;
};

// Watermarks of a tier, as shares of its slots. Levels count slots that are neither free nor
// evictable; `shrink` counts slots that are not free: see PressureGauge. Out of memory has no
// share: no slot is free or evictable.
struct PressureConfig {
  double elevated = 0.80;
  double warning = 0.90;
  double critical = 0.97;
  std::array<PressureReaction, kNumPressureLevels> reactions;

  friend bool operator==(const PressureConfig&, const PressureConfig&) = default;
};

// Limits for all leases of a cache together.
struct CacheQuota {
  // A block counts each time it is held. nullopt: as in BlockManagerOptions.
  std::optional<std::uint32_t> max_leased_blocks = {};

  friend bool operator==(const CacheQuota&, const CacheQuota&) = default;
};

// How much of each tier clients' pins may keep from eviction, as shares of its slots.
struct PinShares {
  double max_share = 0.25;          // of all pins
  double max_share_of_token = 0.1;  // of the pins of one token

  friend bool operator==(const PinShares&, const PinShares&) = default;
};
// A tenth of a tier always serves everybody: with less, blocks would leave before their next use.
inline constexpr double kMaxPinShare = 0.9;

inline constexpr std::size_t kNumRemoteStores = 2;

// A cache's blocks in a store that many servers share.
struct RemoteTierConfig {
  // Which of the server's stores has the blocks.
  enum class Store : std::uint8_t { redis, s3 } store = Store::redis;
  enum class Placement : std::uint8_t {
    values,   // the blocks themselves
    holders,  // which servers have them; blocks are read from those
  } placement = Placement::values;
  // When a block is added to the store.
  enum class Write : std::uint8_t {
    on_commit,
    on_evict,    // when the last copy in the cache makes room
    second_use,  // when a match finds it
  } write = Write::on_commit;
  Codec codec = Codec::none;    // for placement `values`
  std::string name_space = {};  // servers with the same one share blocks; empty: the cache's name
  std::uint64_t ttl_ms = 0;     // each use restarts it; 0: as long as the store keeps the block

  friend bool operator==(const RemoteTierConfig&, const RemoteTierConfig&) = default;
};

// Which blocks of the tokens before it a token needs.
enum class KvGroupKind : std::uint8_t {
  full,    // all of them
  window,  // those of the last window_tokens - 1 tokens
  state,   // one block, the state after the last token
};
std::string_view to_string(KvGroupKind kind);

// Layers of a model that remember the same tokens, and so share blocks.
struct KvGroupConfig {
  std::string name = {};
  KvGroupKind kind = KvGroupKind::full;
  std::uint32_t window_tokens = 0;  // window only
  LayoutConfig shape = {};          // of a block; num_blocks is ignored

  friend bool operator==(const KvGroupConfig&, const KvGroupConfig&) = default;
};

struct CacheConfig {
  std::string name = {};
  // The shape of a block. Each tier has its own num_blocks. In a cache of several KV groups, the
  // shape of the largest block: see filled_in().
  LayoutConfig shape;
  std::array<std::optional<TierConfig>, kNumTiers> tiers;
  OffloadMode offload = OffloadMode::on_evict;
  EvictionKind eviction = kDefaultEviction;
  std::uint32_t default_lease_ms = 30'000;  // limited by max_lease_ms on use
  // By tier; nullopt: the server's.
  std::array<std::optional<PressureConfig>, kNumTiers> pressure = {};
  CacheQuota quota = {};
  PinShares pins = {};
  std::optional<RemoteTierConfig> shared = {};
  // A second store, which is asked for what the first lacks. Of the same namespace.
  std::optional<RemoteTierConfig> shared_far = {};
  // Empty: one full group, named `default`, with `shape`. Its key names page_size tokens.
  std::vector<KvGroupConfig> kv_groups = {};
  std::uint32_t block_tokens = 0;  // tokens that a key names; with kv_groups

  std::size_t kv_group_count() const { return kv_groups.empty() ? 1 : kv_groups.size(); }
  const LayoutConfig& shape_of(KvGroupNumber group) const {
    return kv_groups.empty() ? shape : kv_groups[group].shape;
  }
  KvGroupKind kind_of(KvGroupNumber group) const {
    return kv_groups.empty() ? KvGroupKind::full : kv_groups[group].kind;
  }
  std::uint64_t tokens_per_key() const {
    return kv_groups.empty() ? shape.page_size : block_tokens;
  }

  friend bool operator==(const CacheConfig&, const CacheConfig&) = default;
};

// Changes to a cache in use. nullopt: unchanged.
struct CacheChange {
  std::optional<OffloadMode> offload = {};
  std::optional<EvictionKind> eviction = {};
  std::optional<std::uint32_t> default_lease_ms = {};
  std::array<std::optional<PressureConfig>, kNumTiers> pressure = {};
  std::optional<CacheQuota> quota = {};  // replaces the old one
  std::optional<double> max_pin_share = {};
  std::optional<double> max_pin_share_of_token = {};
  // Not for the device tier. At most one of the two for each tier.
  std::array<std::optional<std::uint32_t>, kNumTiers> num_blocks = {};
  std::array<std::optional<std::uint64_t>, kNumTiers> size_bytes = {};
};

struct PressureEvent {
  std::string cache = {};
  Tier tier = Tier::device;
  PressureLevel from = PressureLevel::normal;
  PressureLevel to = PressureLevel::normal;
};

// Which blocks leaving memory are written to disk. Blocks that a client requests by name are always
// written.
enum class DiskAdmission : std::uint8_t {
  always,
  second_use,  // only blocks used again after their commit
};

// Options of the disk tiers of all caches.
struct DiskOptions {
  // Folders for the slot files; a cache's slots are spread over them. Empty: data_dir/disk.
  std::vector<std::filesystem::path> folders = {};
  bool direct = true;     // bypasses the page cache if the file system can
  bool checksums = true;  // false: checks only the first read after a restart
  // Replaces a slot file with blocks of another shape by an empty one, instead of refusing it.
  bool replace_other_shape = false;
  // Called before a slot file in a folder is opened or created. An error keeps the cache from being
  // made.
  std::function<Result<>(const std::filesystem::path& folder)> check_folder = {};
  // How often the index of a changed tier is made durable. 0: only on request and at the end.
  std::uint32_t checkpoint_period_ms = 30'000;
  DiskAdmission admission = DiskAdmission::always;
  // Limit for offloads of all caches together, because writes wear out flash. 0: no limit.
  std::uint64_t write_bytes_per_s = 0;
  // Rate at which blocks on disk are read and compared with their checksums while the scheduler has
  // nothing else waiting. 0: never.
  std::uint64_t scrub_bytes_per_s = 0;
};

// Limits of the block manager, for all caches together unless stated otherwise.
struct BlockManagerOptions {
  std::filesystem::path data_dir;
  DiskOptions disk;
  // Which stores there are for shared tiers, by RemoteTierConfig::Store.
  std::array<bool, kNumRemoteStores> has_remote_store{};
  bool is_advertised = false;  // other servers can learn this one's URL
  // Folders from which caches may import files; a file must lie directly in one. Empty: no imports
  // by path.
  std::vector<std::filesystem::path> import_folders = {};
  // Limit for engines' host memory that agents and imported tiers use, all together. 0: half of the
  // memory that the machine, or the process's control group, had left at the start.
  std::uint64_t max_registered_bytes = 0;
  std::array<PressureConfig, kNumTiers> pressure;
  // Called for a `callback` reaction, on the thread that crossed the watermark, with no locks held.
  std::function<void(const PressureEvent&)> on_pressure;

  // Called at the places where a crash does most harm, so that tests can crash there.
  std::function<void(std::string_view)> failpoint = [](std::string_view) {};

  std::uint32_t max_caches = 64;
  std::uint32_t max_leases = 65'536;  // per cache
  // Per cache: blocks held by all leases, each counted as often as it is held. While nothing is
  // held, one request may exceed it. The lists then take 64 MiB, and a slot's pin count is far from
  // overflow.
  std::uint32_t max_held_blocks = 1u << 24;
  std::uint32_t max_lease_ms = 3'600'000;  // a dead client's leases end within the hour
  // How long a block that lacks some of its shards waits for the next one. The ranks of an engine
  // store theirs within a step or two of each other.
  std::uint32_t partial_block_ms = 60'000;
  std::uint32_t max_blocks_per_request = 65'536;  // keys of one call
  std::uint32_t max_transfers = 4'096;            // unfinished; one more returns queue_full
  std::uint32_t kept_transfers = 4'096;           // finished ones that clients can still query
  std::uint32_t max_waiting_allocations = 1'024;  // per tier: waiting for an offload
  // Pinned buffers for HTTP reads and writes of tiers that the CPU cannot access.
  std::uint64_t staging_bytes = 64ull << 20;
  // Threads that allocate the pages of pinned tiers before their first use. 0: none. The kernel
  // clears about 1 GB/s per thread.
  unsigned populate_threads = 0;
  std::uint32_t max_metadata_bytes = 4'096;
  // Work for callers that wait for slots under one hold of a cache's lock. A taken slot counts 1
  // (about 30 ns), an evicted copy 4 (about 150 ns).
  std::uint32_t lock_step = 96;
  std::uint32_t max_snapshots = 64;     // per cache
  std::uint32_t max_snapshot_jobs = 4;  // running; each uses a thread and some MiB of blocks
  // Makes file system calls fail, see SnapshotIo. Empty: none.
  std::function<int(std::string_view call)> snapshot_file_fault;
  // Events kept for readers, 200 bytes each. Covers one second of a busy server.
  std::uint32_t kept_events = 65'536;
  // Per cache: the history of evicted blocks, so that they are recognized when they come back.
  // Enough for 8 times the blocks of a cache of 655,000.
  std::uint64_t max_history_bytes = 64ull << 20;
  // File that records requests for simulations: see RequestRecord. Empty: none. A request of 100
  // blocks takes 1.8 KB.
  std::filesystem::path record_path = {};
  std::uint64_t max_record_bytes = 1ull << 30;
};

}  // namespace cairn
