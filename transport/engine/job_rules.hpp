#pragma once

#include "base/result.hpp"
#include "memory/device_runtime.hpp"
#include "memory/storage_kind.hpp"
#include "transport/copy/copy_choice.hpp"
#include "transport/engine/transfer_job.hpp"

namespace cairn {

// What submit() refuses: see TransferEngine. Linear in the pairs where destinations rise, else
// n log n.
Result<> check_job(const TransferJob& job);

// Whether the CPU may use memory of this kind while devices work. Unified memory only where host
// and device see it alike: else a CPU that touches it under a copy faults, or reads what was there
// before.
bool cpu_reaches(StorageKind kind, MemoryVisibility visibility);

// The strategy that a job will be moved with, never `automatic`; impossible where `wanted` does not
// suit the kinds, or how far memory is visible.
struct StrategyRequest {
  CopyStrategy wanted = CopyStrategy::automatic;
  StorageKinds kinds;
  MemoryVisibility visibility = MemoryVisibility::system;
};
Result<CopyStrategy> resolve_strategy(const StrategyRequest& request);

}  // namespace cairn
