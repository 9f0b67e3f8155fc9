#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/histogram.hpp"
#include "blockmgr/eviction/reuse_hint.hpp"
#include "blockmgr/index/config.hpp"
#include "blockmgr/index/lock_holds.hpp"

namespace cairn {

// Why a copy left a tier. A closed set: it is a metric's label.
enum class EvictionReason : std::uint8_t { capacity, pressure, request, expired, io_error };
inline constexpr std::size_t kNumEvictionReasons = 5;
std::string_view to_string(EvictionReason reason);

// What became of a block that a client asked to bring up before its request. A metric's label.
enum class PrefetchResult : std::uint8_t {
  used,     // a request found it in its tier
  late,     // a request came while it was under way, or its deadline did
  wasted,   // it left the tier before any request
  missing,  // it was nowhere
};
inline constexpr std::size_t kNumPrefetchResults = 4;
std::string_view to_string(PrefetchResult result);

// What clients ask for blocks that they do not use now, and what became of it. Metrics' labels.
// `unknown`: a type that another version of the protocol may have.
enum class ActionType : std::uint8_t { pin, unpin, retain, prefetch, demote, share, unknown };
inline constexpr std::size_t kNumActionTypes = 7;
std::string_view to_string(ActionType type);
enum class ActionOutcome : std::uint8_t {
  accepted,  // done, or begun
  clipped,   // for a part of the blocks
  deferred,  // not now: ask again
  rejected,  // for none of them
  missing,   // none of them is there
};
inline constexpr std::size_t kNumActionOutcomes = 5;
std::string_view to_string(ActionOutcome outcome);
using ActionCounts = std::array<std::array<std::uint64_t, kNumActionOutcomes>, kNumActionTypes>;

// The words that clients use, and "none". A metric's label too.
std::string_view to_string(ReuseHint::Kind kind);

enum class TransferOutcome : std::uint8_t { done, failed, cancelled };
inline constexpr std::size_t kNumTransferOutcomes = 3;
std::string_view to_string(TransferOutcome outcome);

// Blocks that the cache itself wanted to write to disk.
struct DiskAdmissionStats {
  std::uint64_t admitted = 0;
  std::uint64_t rejected = 0;   // not used often enough
  std::uint64_t throttled = 0;  // over the write rate
};

// Blocks of a disk tier read by the scrub.
struct DiskScrubStats {
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;
  std::uint64_t wrong = 0;   // unreadable, or with a wrong checksum
  std::uint64_t passes = 0;  // over all slots
};

// Damage to a disk tier that a start found and repaired, except in blocks' bytes.
struct DiskDamageStats {
  std::uint64_t slot_files = 0;  // labels and lengths
  std::uint64_t indexes = 0;     // checkpoints and logs
  std::uint64_t headers = 0;     // of slots, if they had to be read
};

// The copies of a KV group's blocks in a tier.
struct KvGroupStats {
  std::string name;
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;
};

struct TierStats {
  bool present = false;
  std::uint64_t capacity_blocks = 0;
  // Memory whose pages were allocated before their first use; nullopt if this is off.
  std::optional<std::uint64_t> populated_bytes = {};
  std::array<std::uint64_t, kNumSlotStates> blocks{};  // by SlotState
  std::vector<KvGroupStats> kv_groups = {};            // empty without kv_groups
  std::uint64_t slabs_moved = 0;                       // see SlabMap
  std::uint64_t leased_blocks = 0;
  std::uint64_t protected_blocks = 0;  // that clients' pins keep
  std::uint64_t hit_blocks = 0;        // found by matches
  std::array<std::uint64_t, kNumEvictionReasons> evictions{};
  PressureLevel pressure = PressureLevel::normal;
};

// Transfers between tiers, without bytes to and from clients.
struct RouteStats {
  std::array<std::uint64_t, kNumTransferOutcomes> blocks{};  // by outcome
  std::uint64_t bytes = 0;
  std::uint64_t in_flight_blocks = 0;
};

// Totals of all caches since the start, dropped caches included.
struct CacheTotals {
  // Durations of transfers, [from][to].
  std::array<std::array<DurationHistogram::Snapshot, kNumTiers>, kNumTiers> durations = {};
  std::array<std::uint64_t, kNumTiers> checksum_failures = {};
  DiskDamageStats disk_damage;
};

// Cache sizes, as multiples of the present one. For each, CacheStats::miss_ratio_curve has the
// share of the requested blocks that LRU would miss.
inline constexpr std::array<double, 5> kCurveRatios = {0.25, 0.5, 1, 2, 4};

struct CacheStats {
  std::string name;
  std::array<TierStats, kNumTiers> tiers;
  std::array<std::array<RouteStats, kNumTiers>, kNumTiers> routes;  // [from][to]
  std::uint64_t matches = 0;
  bool has_remote_tier = false;         // it has a shared tier
  std::uint64_t remote_hit_blocks = 0;  // found in the shared tier
  std::uint64_t miss_blocks = 0;        // hits of all tiers and misses sum to the keys asked for
  DiskAdmissionStats disk_admission;
  DiskScrubStats disk_scrub;
  MediumCodec::Stats disk_codec = {};
  std::uint64_t disk_full = 0;  // blocks that were not written because the disk is full
  std::uint64_t leases = 0;
  std::uint64_t lease_expirations = 0;
  std::uint64_t pins = 0;
  ActionCounts actions{};
  std::array<std::uint64_t, kNumPrefetchResults> prefetched{};
  std::uint64_t commits = 0;
  std::uint64_t duplicates = 0;
  std::array<std::uint64_t, kHintKinds> hints{};  // by ReuseHint::Kind
  LockHolds lock_holds;
  // Memory of the index, the slot records, the histories and the attached metadata.
  std::uint64_t metadata_bytes = 0;
  std::uint64_t history_bytes = 0;      // memory of the eviction order's history
  std::uint64_t remembered_blocks = 0;  // evicted blocks that are recognized when they come back
  std::uint64_t follows_lru = 0;        // 1: LRU is used instead of the configured order
  std::uint64_t order_changes = 0;      // switches between LRU and the configured order
  std::uint64_t requests_followed = 0;  // 0: the curve below is unknown
  std::array<double, kCurveRatios.size()> miss_ratio_curve{};
};

}  // namespace cairn
