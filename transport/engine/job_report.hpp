#pragma once

#include <cstddef>

#include "base/mutex.hpp"
#include "transport/engine/transfer_job.hpp"

namespace cairn {

// A run of a job's pairs.
struct PairRange {
  std::size_t first = 0;
  std::size_t count = 0;
};

// Of a job of which no pair arrived.
JobOutcome failed_outcome(const TransferJob& job, const Error& error);

// What has become of a running job's pairs; each pair is reported once. Thread-safe.
class JobReport {
 public:
  // Borrows the job.
  explicit JobReport(TransferJob& job) : job_(job) {}

  void arrived(PairRange pairs);
  void failed(PairRange pairs, const Error& error);
  // There was no memory to say what became of so many pairs: none of the job's is taken for one
  // that arrived.
  void lost(std::size_t pairs);

  // The state, failures and bytes. REQUIRES: every pair was reported or lost.
  JobOutcome take_outcome();

 private:
  TransferJob& job_;
  Mutex mutex_;
  std::size_t arrived_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::size_t lost_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::vector<BlockFailure> failures_ CAIRN_GUARDED_BY(mutex_);
};

// The same of a part of a job, which knows what of it was not reported yet. For one thread at a
// time.
class PartReport {
 public:
  // Borrows the job's.
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
