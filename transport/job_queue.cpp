#include "transport/job_queue.hpp"

#include "base/assert.hpp"

namespace cairn {

std::optional<TimePoint> JobQueue::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

void JobQueue::push(std::unique_ptr<AcceptedJob> job) {
  CAIRN_ASSERT(!full(), "the bound of the queue would not hold");
  const JobId id = job->id;
  if (job->job.deadline) deadlines_.emplace(*job->job.deadline, id);
  const Rank rank(*job);
  auto [at, is_new] = waiting_.emplace(rank, std::move(job));
  CAIRN_ASSERT(is_new, "a job would lose its completion");
  by_id_.emplace(id, at);
}

std::unique_ptr<AcceptedJob> JobQueue::pop() {
  return waiting_.empty() ? nullptr : take(waiting_.begin());
}

std::unique_ptr<AcceptedJob> JobQueue::remove(JobId id) {
  auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : take(found->second);
}

bool JobQueue::raise(JobId id, std::int32_t priority) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  TransferJob& job = found->second->second->job;
  if (priority <= job.priority) return true;
  auto node = waiting_.extract(found->second);
  job.priority = priority;
  node.key() = Rank(*node.mapped());
  found->second = waiting_.insert(std::move(node)).position;
  return true;
}

std::vector<std::unique_ptr<AcceptedJob>> JobQueue::remove_overdue(TimePoint now) {
  std::vector<std::unique_ptr<AcceptedJob>> overdue;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    overdue.push_back(remove(deadlines_.begin()->second));
  }
  return overdue;
}

std::vector<std::unique_ptr<AcceptedJob>> JobQueue::remove_all() {
  std::vector<std::unique_ptr<AcceptedJob>> all;
  while (auto job = pop()) all.push_back(std::move(job));
  return all;
}

std::unique_ptr<AcceptedJob> JobQueue::take(Waiting::iterator at) {
  std::unique_ptr<AcceptedJob> job = std::move(at->second);
  waiting_.erase(at);
  by_id_.erase(job->id);
  if (job->job.deadline) deadlines_.erase({*job->job.deadline, job->id});
  return job;
}

}  // namespace cairn
