#pragma once

#include "base/result.hpp"
#include "transport/engine/transfer_job.hpp"

namespace cairn {

// What submit() refuses: see TransferEngine. Linear in the pairs where destinations rise, else
// n log n.
Result<> check_job(const TransferJob& job);

}  // namespace cairn
