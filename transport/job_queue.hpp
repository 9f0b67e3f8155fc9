#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/transfer_job.hpp"

namespace cairn {

// An accepted job. Whoever owns the object owes its completion: it is moved from hand to hand, so
// exactly one completion runs.
struct AcceptedJob {
  JobId id;
  TransferJob job;
  CopyStrategy strategy = CopyStrategy::sync;  // resolved
  TimePoint submitted_at;
};

// Jobs that wait: loads before stores, then higher priority, then lower id. Not thread-safe.
class JobQueue {
 public:
  explicit JobQueue(std::size_t limit) : limit_(limit) {}

  std::size_t size() const { return waiting_.size(); }
  bool full() const { return waiting_.size() >= limit_; }
  // The earliest deadline of a waiting job.
  std::optional<TimePoint> next_deadline() const;

  void push(std::unique_ptr<AcceptedJob> job);    // REQUIRES: !full(), a new id
  std::unique_ptr<AcceptedJob> pop();             // null where nothing waits
  std::unique_ptr<AcceptedJob> remove(JobId id);  // null where it does not wait
  // Gives a job that waits the higher priority, and its age's place among those of it. False where
  // it does not wait.
  bool raise(JobId id, std::int32_t priority);
  std::vector<std::unique_ptr<AcceptedJob>> remove_overdue(TimePoint now);
  std::vector<std::unique_ptr<AcceptedJob>> remove_all();

 private:
  struct Rank {
    explicit Rank(const AcceptedJob& accepted)
        : kind(accepted.job.kind), urgency(-std::int64_t{accepted.job.priority}), id(accepted.id) {}
    JobKind kind;
    std::int64_t urgency;  // the priority, negated: std::int32_t has no room for that
    JobId id;
    friend auto operator<=>(const Rank&, const Rank&) = default;
  };
  using Waiting = std::map<Rank, std::unique_ptr<AcceptedJob>>;

  std::unique_ptr<AcceptedJob> take(Waiting::iterator at);

  const std::size_t limit_;
  Waiting waiting_;
  std::unordered_map<JobId, Waiting::iterator> by_id_;
  std::set<std::pair<TimePoint, JobId>> deadlines_;
};

}  // namespace cairn
