#pragma once

#include "base/result.hpp"
#include "transport/transfer/transfer_job.hpp"

namespace cairn {

// Returns the errors of TransferScheduler::submit() that depend on the job only. Takes O(n) time if
// destinations are sorted, else O(n log n).
Result<> check_job(const TransferJob& job);

}  // namespace cairn
