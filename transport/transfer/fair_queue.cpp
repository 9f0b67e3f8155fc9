#include "transport/transfer/fair_queue.hpp"

#include <algorithm>

#include "base/assert.hpp"

namespace cairn {

std::int64_t FairQueue::due_ns(TimePoint since, std::int32_t priority) {
  // No overflow: 2^31 steps of priority are 8 months, and TimePoint counts from boot.
  const auto at = std::chrono::duration_cast<std::chrono::nanoseconds>(since.time_since_epoch());
  return at.count() - std::int64_t{priority} * std::chrono::nanoseconds(kPriorityWait).count();
}

void FairQueue::push(std::shared_ptr<ActiveJob> job) {
  ActiveJob& pushed = *job;
  Class& its = class_of(pushed);
  if (its.jobs.empty()) {
    // A class gets no credit for the time it had no jobs.
    std::optional<std::uint64_t> least;
    for (const Class& other : classes_) {
      if (!other.jobs.empty()) least = std::min(least.value_or(other.served), other.served);
    }
    if (least) its.served = std::max(its.served, *least);
  }
  pushed.due_ns = due_ns(pushed.submitted_at, pushed.job.priority);
  try {
    const bool is_new = waiting_.emplace(pushed.id, &pushed).second;
    CAIRN_ASSERT(is_new, "a job would lose its completion");
    its.jobs.emplace(rank_of(pushed), std::move(job));
  } catch (const std::bad_alloc&) {
    waiting_.erase(pushed.id);
    throw;
  }
}

const std::shared_ptr<ActiveJob>* FairQueue::front(const Classes& allowed) const {
  const Class* best = nullptr;
  for (std::size_t i = 0; i < kNumUrgencies; ++i) {
    const Class& its = classes_[i];
    if (!allowed[i] || its.jobs.empty()) continue;
    if (best == nullptr || its.served < best->served) best = &its;
  }
  return best == nullptr ? nullptr : &best->jobs.begin()->second;
}

void FairQueue::taken(ActiveJob& job, Part part, TimePoint now) {
  if (job.next == 0) waiting_.erase(job.id);
  job.next = part.next;
  Class& its = class_of(job);
  its.served +=
      std::max<std::uint64_t>(part.bytes, 1) / kWeights[static_cast<std::size_t>(job.job.urgency)] +
      1;
  if (part.next == job.job.pairs.size()) {
    its.jobs.erase(rank_of(job));
  } else {
    move_to(job, due_ns(now, job.job.priority));
  }
}

void FairQueue::move_to(ActiveJob& job, std::int64_t due_ns) {
  Jobs& jobs = class_of(job).jobs;
  auto node = jobs.extract(rank_of(job));
  job.due_ns = due_ns;
  node.key() = rank_of(job);
  jobs.insert(std::move(node));
}

std::shared_ptr<ActiveJob> FairQueue::remove(JobId id) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return nullptr;
  ActiveJob& job = *found->second;
  waiting_.erase(found);
  return std::move(class_of(job).jobs.extract(rank_of(job)).mapped());
}

bool FairQueue::raise(JobId id, const Raise& to) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return false;
  ActiveJob& job = *found->second;
  if (to.urgency < job.job.urgency) {
    auto shared = remove(id);
    job.job.urgency = to.urgency;
    job.job.priority = std::max(job.job.priority, to.priority);
    push(std::move(shared));
    return true;
  }
  if (to.priority <= job.job.priority) return true;
  job.job.priority = to.priority;
  move_to(job, due_ns(job.submitted_at, to.priority));
  return true;
}

std::vector<std::shared_ptr<ActiveJob>> FairQueue::remove_waiting() {
  std::vector<std::shared_ptr<ActiveJob>> all;
  while (!waiting_.empty()) all.push_back(remove(waiting_.begin()->first));
  return all;
}

}  // namespace cairn
