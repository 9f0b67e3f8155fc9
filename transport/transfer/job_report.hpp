#pragma once

#include <cstddef>

#include "base/mutex.hpp"
#include "transport/transfer/transfer_job.hpp"

namespace cairn {

// Consecutive pairs of a job.
struct PairRange {
  std::size_t first = 0;
  std::size_t count = 0;
};

// The outcome of a job none of whose pairs arrived.
JobOutcome failed_outcome(const TransferJob& job, const Error& error);

// Results of a running job's pairs. Report each pair once. Thread-safe.
class JobReport {
 public:
  // Borrows the job.
  explicit JobReport(TransferJob& job) : job_(job) {}

  void arrived(PairRange pairs);
  void failed(PairRange pairs, const Error& error);
  // Records that the results of this many pairs are unknown, for lack of memory. The outcome then
  // counts no pair of the job as arrived.
  void lost(std::size_t pairs);

  // REQUIRES: every pair has been reported or lost.
  JobOutcome take_outcome();

 private:
  TransferJob& job_;
  Mutex mutex_;
  std::size_t arrived_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::size_t lost_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::vector<BlockFailure> failures_ CAIRN_GUARDED_BY(mutex_);
};

// Reports for one part of a job and counts the pairs not reported yet. Not thread-safe.
class PartReport {
 public:
  // Borrows the report.
  PartReport(JobReport& report, std::size_t pairs) : report_(report), left_(pairs) {}

  void arrived(PairRange pairs) {
    report_.arrived(pairs);
    left_ -= pairs.count;
  }
  void failed(PairRange pairs, const Error& error) {
    report_.failed(pairs, error);
    left_ -= pairs.count;
  }
  void lose_rest() { report_.lost(left_); }

 private:
  JobReport& report_;
  std::size_t left_;
};

}  // namespace cairn
