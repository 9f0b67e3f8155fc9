// The names of enum values that clients and dashboards see.
#include <array>

#include "blockmgr/index/config.hpp"
#include "blockmgr/index/lock_holds.hpp"
#include "blockmgr/index/stats.hpp"
#include "blockmgr/index/types.hpp"

namespace cairn {
namespace {

constexpr std::array<std::string_view, kNumTiers> kTierNames = {"device", "pinned", "disk"};
constexpr std::array<std::string_view, kNumSlotStates> kSlotStateNames = {"free", "allocated",
                                                                          "committed", "evictable"};
constexpr std::array<std::string_view, 3> kKvGroupKindNames = {"full", "window", "state"};
constexpr std::array<std::string_view, 3> kOffloadNames = {"on_evict", "on_commit", "never"};
constexpr std::array<std::string_view, kNumPressureLevels> kPressureNames = {
    "normal", "elevated", "warning", "critical", "out_of_memory"};
constexpr std::array<std::string_view, kNumEvictionReasons> kReasonNames = {
    "capacity", "pressure", "request", "expired", "io_error"};
constexpr std::array<std::string_view, kNumTransferOutcomes> kOutcomeNames = {"done", "failed",
                                                                              "cancelled"};
constexpr std::array<std::string_view, kNumPrefetchResults> kPrefetchNames = {"used", "late",
                                                                              "wasted", "missing"};
constexpr std::array<std::string_view, kNumActionTypes> kActionNames = {
    "pin", "unpin", "retain", "prefetch", "demote", "share", "unknown"};
constexpr std::array<std::string_view, kNumActionOutcomes> kActionOutcomeNames = {
    "accepted", "clipped", "deferred", "rejected", "missing"};
constexpr std::array<std::string_view, kNumLockUses> kLockUseNames = {
    "match", "look",     "read",  "write",    "allocate", "commit",
    "lease", "transfer", "evict", "movement", "upkeep"};
constexpr std::array<std::string_view, kHintKinds> kHintNames = {"none", "never", "soon", "later",
                                                                 "within"};

}  // namespace

std::string_view to_string(Tier tier) { return kTierNames[index_of(tier)]; }

std::optional<Tier> tier_from(std::string_view word) {
  for (Tier tier : kTiers) {
    if (to_string(tier) == word) return tier;
  }
  return std::nullopt;
}

std::string_view to_string(ReuseHint::Kind kind) {
  return kHintNames[static_cast<std::size_t>(kind)];
}

std::string_view to_string(SlotState state) {
  return kSlotStateNames[static_cast<std::size_t>(state)];
}

std::optional<SlotState> slot_state_from(std::string_view word) {
  for (std::size_t i = 0; i < kNumSlotStates; ++i) {
    if (kSlotStateNames[i] == word) return static_cast<SlotState>(i);
  }
  return std::nullopt;
}

std::string_view to_string(KvGroupKind kind) {
  return kKvGroupKindNames[static_cast<std::size_t>(kind)];
}

std::string_view to_string(OffloadMode mode) {
  return kOffloadNames[static_cast<std::size_t>(mode)];
}

std::string_view to_string(PressureLevel level) {
  return kPressureNames[static_cast<std::size_t>(level)];
}

std::string_view to_string(EvictionReason reason) {
  return kReasonNames[static_cast<std::size_t>(reason)];
}

std::string_view to_string(PrefetchResult result) {
  return kPrefetchNames[static_cast<std::size_t>(result)];
}

std::string_view to_string(ActionType type) { return kActionNames[static_cast<std::size_t>(type)]; }

std::string_view to_string(ActionOutcome outcome) {
  return kActionOutcomeNames[static_cast<std::size_t>(outcome)];
}

std::string_view to_string(LockUse use) { return kLockUseNames[static_cast<std::size_t>(use)]; }

std::string_view to_string(TransferOutcome outcome) {
  return kOutcomeNames[static_cast<std::size_t>(outcome)];
}

}  // namespace cairn
