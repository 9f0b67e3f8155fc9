#pragma once

#include "base/result.hpp"
#include "transport/engine/transfer_job.hpp"

namespace cairn {

// Returns the errors of TransferEngine::submit() that depend on the job only. Takes O(n) time if
// destinations are sorted, else O(n log n).
Result<> check_job(const TransferJob& job);

}  // namespace cairn
