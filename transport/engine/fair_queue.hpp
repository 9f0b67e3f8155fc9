#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "transport/copy/copy_choice.hpp"
#include "transport/engine/job_report.hpp"
#include "transport/engine/transfer_job.hpp"

namespace cairn {

// An accepted job, until its last pair was reported.
struct ActiveJob {
  ActiveJob(JobId its_id, TimePoint now) : id(its_id), submitted_at(now), report(job) {}

  const JobId id;
  TransferJob job = {};
  CopyStrategy strategy = CopyStrategy::sync;  // resolved
  const TimePoint submitted_at;
  std::optional<TimePoint> begun_at = {};
  std::size_t next = 0;  // the first pair that was not begun
  std::uint32_t parts_under_way = 0;
  std::int64_t due_ns = 0;  // the queue's own
  JobReport report;
};

// Jobs of one route with pairs that nobody has begun, handed out a part at a time.
//
// Between the classes that wait the bytes are dealt out by weight, so that what clients read does
// not starve what allocations wait for, nor the other way round. Within a class the job goes first
// that was served longest ago, where each step of priority counts as kPriorityWait of waiting: what
// is large gives way to what comes after each of its parts, and what is of low priority ages. Not
// thread-safe.
class FairQueue {
 public:
  // Of engine, client, allocation, background. A GPU stands still while its engine waits, so a load
  // goes before all but a few of a bulk's parts; some of those go on beside it.
  static constexpr std::array<std::uint64_t, kNumUrgencies> kWeights = {32, 8, 4, 1};
  static constexpr Duration kPriorityWait = std::chrono::milliseconds(10);

  // Jobs of which no part was begun: only these are found and cancelled.
  std::size_t waiting() const { return waiting_.size(); }

  // REQUIRES: a new id.
  void push(std::shared_ptr<ActiveJob> job);
  // The job whose part is next, of these classes; null where there is none.
  using Classes = std::array<bool, kNumUrgencies>;
  const std::shared_ptr<ActiveJob>* front(const Classes& allowed) const;
  // The job's pairs up to `next` were begun, so many bytes.
  struct Part {
    std::size_t next = 0;
    std::uint64_t bytes = 0;
  };
  void taken(ActiveJob& job, Part part, TimePoint now);

  std::shared_ptr<ActiveJob> remove(JobId id);  // null where it does not wait
  // Gives a job that waits the higher priority. False where it does not wait.
  bool raise(JobId id, std::int32_t priority);
  std::vector<std::shared_ptr<ActiveJob>> remove_waiting();

 private:
  // When it was served last, or came, less what its priority is worth.
  struct Rank {
    std::int64_t due_ns = 0;
    JobId id;
    friend auto operator<=>(const Rank&, const Rank&) = default;
  };
  using Jobs = std::map<Rank, std::shared_ptr<ActiveJob>>;
  struct Class {
    Jobs jobs;
    std::uint64_t served = 0;  // bytes, over its weight
  };
  static std::int64_t due_ns(TimePoint since, std::int32_t priority);
  static Rank rank_of(const ActiveJob& job) { return {job.due_ns, job.id}; }
  Class& class_of(const ActiveJob& job) {
    return classes_[static_cast<std::size_t>(job.job.urgency)];
  }
  // Another due time.
  void move_to(ActiveJob& job, std::int64_t due_ns);

  std::array<Class, kNumUrgencies> classes_;
  std::unordered_map<JobId, ActiveJob*> waiting_;  // no part was begun
};

}  // namespace cairn
