#pragma once

#include "base/result.hpp"
#include "memory/storage_kind.hpp"
#include "transport/transfer_job.hpp"

namespace cairn {

// What submit() refuses: see TransferEngine. Linear in the pairs where destinations rise, else
// n log n.
Result<> check_job(const TransferJob& job);

struct StorageKinds {
  StorageKind source;
  StorageKind destination;
};

// The strategy that a job will be moved with, never `automatic`; impossible where `wanted` does not
// suit the kinds.
Result<CopyStrategy> resolve_strategy(CopyStrategy wanted, StorageKinds kinds);

}  // namespace cairn
