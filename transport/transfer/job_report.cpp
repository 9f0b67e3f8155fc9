#include "transport/transfer/job_report.hpp"

#include <algorithm>

#include "base/assert.hpp"

namespace cairn {

JobOutcome failed_outcome(const TransferJob& job, const Error& error) {
  JobOutcome outcome;
  outcome.state = JobState::failed;
  for (std::uint32_t i = 0; i < job.pairs.size(); ++i) outcome.failures.push_back({i, error});
  return outcome;
}

void JobReport::arrived(PairRange pairs) {
  MutexLock lock(mutex_);
  arrived_ += pairs.count;
  // Called under the lock, so that the reported counts only rise.
  if (job_.on_progress) job_.on_progress(static_cast<std::uint32_t>(arrived_));
}

void JobReport::failed(PairRange pairs, const Error& error) {
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < pairs.count; ++i) {
    failures_.push_back({static_cast<std::uint32_t>(pairs.first + i), error});
  }
}

void JobReport::lost(std::size_t pairs) {
  MutexLock lock(mutex_);
  lost_ += pairs;
}

JobOutcome JobReport::take_outcome() {
  MutexLock lock(mutex_);
  if (lost_ > 0) return failed_outcome(job_, {ErrorCode::internal, "out of memory"});
  CAIRN_ASSERT(arrived_ + failures_.size() == job_.pairs.size(),
               "a pair that nobody moved would be taken for one that arrived");
  JobOutcome outcome;
  outcome.state = failures_.empty() ? JobState::done : JobState::failed;
  outcome.bytes_moved = arrived_ * job_.source->geometry().block_bytes();
  outcome.failures = std::move(failures_);
  std::ranges::sort(outcome.failures, {}, &BlockFailure::index);
  return outcome;
}

}  // namespace cairn
