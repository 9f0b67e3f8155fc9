#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "transport/copy/copy_choice.hpp"
#include "transport/transfer/job_report.hpp"
#include "transport/transfer/transfer_job.hpp"

namespace cairn {

// An accepted job, until its last pair has been reported.
struct ActiveJob {
  ActiveJob(JobId its_id, TimePoint now) : id(its_id), submitted_at(now), report(job) {}

  const JobId id;
  TransferJob job = {};
  CopyStrategy strategy = CopyStrategy::sync;  // resolved
  const TimePoint submitted_at;
  std::optional<TimePoint> begun_at = {};
  std::size_t next = 0;  // the first pair not yet started
  std::uint32_t parts_under_way = 0;
  std::int64_t due_ns = 0;  // set by the queue
  JobReport report;
};

// The jobs of one route that have pairs left to start. Hands out one part at a time.
//
// Between classes, bytes are shared by weight, so that client reads and the evictions that
// allocations wait for do not starve each other. Within a class, the job served longest ago is
// next; each step of priority counts as kPriorityWait of waiting. So after each part a large job
// yields to newer ones, and a low-priority job ages. Not thread-safe.
class FairQueue {
 public:
  // For engine, client, allocation, prefetch, background. A GPU idles while its engine waits, so
  // engine loads come before all but a few parts of bulk work.
  static constexpr std::array<std::uint64_t, kNumUrgencies> kWeights = {32, 8, 4, 2, 1};
  static constexpr Duration kPriorityWait = std::chrono::milliseconds(10);

  // Jobs with no part started. Only these can be cancelled or raised.
  std::size_t waiting() const { return waiting_.size(); }

  // REQUIRES: a new id.
  void push(std::shared_ptr<ActiveJob> job);
  // Returns the job whose part is next among the `allowed` classes; null if none.
  using Classes = std::array<bool, kNumUrgencies>;
  const std::shared_ptr<ActiveJob>* front(const Classes& allowed) const;
  // Records that the job's pairs up to `next` have started, with this many bytes.
  struct Part {
    std::size_t next = 0;
    std::uint64_t bytes = 0;
  };
  void taken(ActiveJob& job, Part part, TimePoint now);

  std::shared_ptr<ActiveJob> remove(JobId id);  // null if it does not wait
  // Raises the priority of a waiting job, and its class. Returns false if the job does not wait.
  bool raise(JobId id, const Raise& to);
  std::vector<std::shared_ptr<ActiveJob>> remove_waiting();

 private:
  // Sorts by the time of the last service (or of submission), minus the worth of the priority.
  struct Rank {
    std::int64_t due_ns = 0;
    JobId id;
    friend auto operator<=>(const Rank&, const Rank&) = default;
  };
  using Jobs = std::map<Rank, std::shared_ptr<ActiveJob>>;
  struct Class {
    Jobs jobs;
    std::uint64_t served = 0;  // bytes divided by the weight
  };
  static std::int64_t due_ns(TimePoint since, std::int32_t priority);
  static Rank rank_of(const ActiveJob& job) { return {job.due_ns, job.id}; }
  Class& class_of(const ActiveJob& job) {
    return classes_[static_cast<std::size_t>(job.job.urgency)];
  }
  // Changes the job's due time.
  void move_to(ActiveJob& job, std::int64_t due_ns);

  std::array<Class, kNumUrgencies> classes_;
  std::unordered_map<JobId, ActiveJob*> waiting_;  // no part started
};

}  // namespace cairn
