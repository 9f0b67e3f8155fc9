#include "transport/transfer_engine.hpp"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "base/assert.hpp"
#include "base/mutex.hpp"
#include "base/thread.hpp"
#include "transport/disk_route.hpp"
#include "transport/job_queue.hpp"
#include "transport/job_rules.hpp"
#include "transport/memory_route.hpp"

namespace cairn {
namespace {

// A deadline further away than this is looked at again then: no sum of times can overflow.
constexpr Duration kLongestTimerWait = std::chrono::minutes(1);

using Counter = std::atomic<std::uint64_t>;
constexpr auto kRelaxed = std::memory_order_relaxed;

// TransferEngineStats, read without a lock. Each is right; together they may be a moment apart
// while jobs move.
struct Counters {
  Counter queued{0};
  Counter running{0};
  Counter submitted{0};
  Counter done{0};
  Counter failed{0};
  Counter cancelled{0};
  Counter rejected{0};
  Counter bytes_moved{0};

  Counter& of(JobState state) {
    switch (state) {
      case JobState::done:
        return done;
      case JobState::failed:
        return failed;
      case JobState::cancelled:
        return cancelled;
    }
    invariant_broken("JobState", "a value outside the enumeration");
  }
};

JobOutcome cancelled_outcome() {
  JobOutcome outcome;
  outcome.state = JobState::cancelled;
  return outcome;
}

JobOutcome failed_outcome(const TransferJob& job, const Error& error) {
  JobOutcome outcome;
  outcome.state = JobState::failed;
  for (std::uint32_t i = 0; i < job.pairs.size(); ++i) outcome.failures.push_back({i, error});
  return outcome;
}

JobOutcome overdue_outcome(const TransferJob& job) {
  return failed_outcome(
      job, {ErrorCode::deadline_exceeded, "the transfer had not begun by its deadline"});
}

bool is_overdue(const TransferJob& job, TimePoint now) {
  return job.deadline.has_value() && *job.deadline <= now;
}

}  // namespace

// Every job belongs to one unique_ptr, moved out of the queue under the mutex by whoever will end
// it: a worker, cancel(), the deadline timer or the destructor. Completions run without the mutex.
struct TransferEngine::Impl {
  Impl(DeviceRuntime& device_runtime, DiskIo& disk_io, const Clock& engine_clock,
       TransferEngineOptions engine_options);
  ~Impl();

  Result<JobId> submit(TransferJob&& job);
  bool cancel(JobId id);
  bool raise(JobId id, std::int32_t priority);
  void expire_overdue();

  DeviceScratch* scratch_or_null() { return scratch ? &*scratch : nullptr; }
  void work();
  void stop();  // cancels what waits, ends the threads
  void watch_deadlines();
  JobOutcome execute(AcceptedJob& accepted, Lane& lane);
  void count_queue() CAIRN_REQUIRES(mutex) { counters.queued.store(queue.size(), kRelaxed); }
  // Counts the outcome, then runs the completion.
  void complete(std::unique_ptr<AcceptedJob> accepted, JobOutcome outcome);

  DeviceRuntime& runtime;
  DiskIo& disk;
  const Clock& clock;
  const TransferEngineOptions options;
  PinnedPool staging;
  // Where there is a bus between host and devices.
  std::optional<DeviceScratch> scratch;
  LaneCrew crew;

  mutable Mutex mutex;
  Condition work_available;
  Condition deadline_nearer;  // or the end has come
  Condition idle;
  JobQueue queue CAIRN_GUARDED_BY(mutex);
  Counters counters;
  std::uint64_t last_id CAIRN_GUARDED_BY(mutex) = 0;
  std::uint64_t unfinished CAIRN_GUARDED_BY(mutex) = 0;  // accepted, completion not yet returned
  bool stopping CAIRN_GUARDED_BY(mutex) = false;
  std::vector<Thread> threads;
};

TransferEngine::Impl::Impl(DeviceRuntime& device_runtime, DiskIo& disk_io,
                           const Clock& engine_clock, TransferEngineOptions engine_options)
    : runtime(device_runtime),
      disk(disk_io),
      clock(engine_clock),
      options(engine_options),
      staging(device_runtime, {.limit_bytes = engine_options.staging_bytes}),
      scratch(device_runtime.visibility() == MemoryVisibility::system
                  ? std::nullopt
                  : std::optional<DeviceScratch>(std::in_place, device_runtime)),
      crew(device_runtime, scratch_or_null(), engine_options.disk_threads),
      queue(engine_options.max_queued_jobs) {
  CAIRN_ASSERT(options.workers > 0, "no job would ever run");
  try {
    for (std::uint32_t i = 0; i < options.workers; ++i) {
      threads.emplace_back("transfer " + std::to_string(i),
                           [this](const std::stop_token&) { work(); });
    }
    threads.emplace_back("deadlines", [this](const std::stop_token&) { watch_deadlines(); });
  } catch (...) {
    stop();
    throw;
  }
}

TransferEngine::Impl::~Impl() { stop(); }

void TransferEngine::Impl::stop() {
  std::vector<std::unique_ptr<AcceptedJob>> waiting;
  {
    MutexLock lock(mutex);
    stopping = true;
    waiting = queue.remove_all();
    count_queue();
  }
  work_available.notify_all();
  deadline_nearer.notify_all();
  for (auto& job : waiting) complete(std::move(job), cancelled_outcome());
  threads.clear();
}

Result<JobId> TransferEngine::Impl::submit(TransferJob&& job) {
  Result<> checked = check_job(job);
  Result<CopyStrategy> strategy = CopyStrategy::automatic;
  if (checked) {
    strategy = resolve_strategy({
        .wanted = job.strategy,
        .kinds = {job.source->storage_kind(), job.destination->storage_kind()},
        .visibility = runtime.visibility(),
    });
  }
  const TimePoint now = clock.now();

  MutexLock lock(mutex);
  const auto reject = [&](Error error) -> Result<JobId> {
    counters.rejected.fetch_add(1, kRelaxed);
    return error;
  };
  if (!checked) return reject(std::move(checked).error());
  if (!strategy) return reject(std::move(strategy).error());
  if (stopping) return reject({ErrorCode::unavailable, "the transfer engine is shutting down"});
  if (queue.full()) {
    return reject({ErrorCode::queue_full, "all " + std::to_string(options.max_queued_jobs) +
                                              " places for waiting transfers are taken"});
  }
  const JobId id{++last_id};
  const auto earliest = queue.next_deadline();
  const auto deadline = job.deadline;
  queue.push(std::make_unique<AcceptedJob>(AcceptedJob{id, std::move(job), *strategy, now}));
  count_queue();
  counters.submitted.fetch_add(1, kRelaxed);
  ++unfinished;
  work_available.notify_one();
  if (deadline && (!earliest || *deadline < *earliest)) deadline_nearer.notify_one();
  return id;
}

bool TransferEngine::Impl::cancel(JobId id) {
  std::unique_ptr<AcceptedJob> job;
  {
    MutexLock lock(mutex);
    job = queue.remove(id);
    count_queue();
  }
  if (job == nullptr) return false;
  complete(std::move(job), cancelled_outcome());
  return true;
}

bool TransferEngine::Impl::raise(JobId id, std::int32_t priority) {
  MutexLock lock(mutex);
  return queue.raise(id, priority);
}

void TransferEngine::Impl::expire_overdue() {
  std::vector<std::unique_ptr<AcceptedJob>> overdue;
  {
    MutexLock lock(mutex);
    overdue = queue.remove_overdue(clock.now());
    count_queue();
  }
  for (auto& job : overdue) {
    JobOutcome outcome = overdue_outcome(job->job);
    complete(std::move(job), std::move(outcome));
  }
}

void TransferEngine::Impl::work() {
  Lane lane(runtime, scratch_or_null());
  while (true) {
    std::unique_ptr<AcceptedJob> job;
    {
      MutexLock lock(mutex);
      while (queue.size() == 0 && !stopping) work_available.wait(mutex);
      job = queue.pop();
      if (job == nullptr) return;
      counters.running.fetch_add(1, kRelaxed);  // first: it is always seen somewhere
      count_queue();
    }
    JobOutcome outcome;
    // Where it threw, some bytes may have arrived: none is taken for one that did.
    if (!guarded("transfer", [&] { outcome = execute(*job, lane); })) {
      outcome = {.state = JobState::cancelled, .failures = {}, .begun = true};
      guarded("transfer", [&] {
        outcome = failed_outcome(job->job, {ErrorCode::internal, "there was no memory for it"});
        outcome.begun = true;
      });
    }
    counters.running.fetch_sub(1, kRelaxed);
    complete(std::move(job), std::move(outcome));
  }
}

// The clock may be a test's, so its times are only compared with each other: the wait itself is for
// a length of time, and what is overdue is asked of the clock.
void TransferEngine::Impl::watch_deadlines() {
  while (true) {
    {
      MutexLock lock(mutex);
      while (true) {
        if (stopping) return;
        const auto next = queue.next_deadline();
        if (!next) {
          deadline_nearer.wait(mutex);
          continue;
        }
        const TimePoint now = clock.now();
        if (*next <= now) break;
        deadline_nearer.wait_for(mutex, std::min(*next - now, kLongestTimerWait));
      }
    }
    guarded("deadlines", [this] { expire_overdue(); });
  }
}

JobOutcome TransferEngine::Impl::execute(AcceptedJob& accepted, Lane& lane) {
  TransferJob& job = accepted.job;
  const TimePoint begun_at = clock.now();
  JobOutcome outcome;
  if (is_overdue(job, begun_at)) {
    outcome = overdue_outcome(job);
  } else {
    JobReport report(job);
    const CopyMode mode{.strategy = accepted.strategy,
                        .polling_interval_us = options.polling_interval_us,
                        .thresholds = options.copy_forms,
                        .visibility = runtime.visibility()};
    const bool on_disk = job.source->storage_kind() == StorageKind::disk ||
                         job.destination->storage_kind() == StorageKind::disk;
    if (on_disk) {
      move_with_disk(job, mode, {disk, staging, crew}, lane, report);
    } else {
      move_in_memory(job, mode, lane, report);
    }
    outcome = report.take_outcome();
    outcome.begun = true;
    outcome.running = clock.now() - begun_at;
  }
  outcome.queued = begun_at - accepted.submitted_at;
  return outcome;
}

void TransferEngine::Impl::complete(std::unique_ptr<AcceptedJob> accepted, JobOutcome outcome) {
  counters.bytes_moved.fetch_add(outcome.bytes_moved, kRelaxed);
  counters.of(outcome.state).fetch_add(1, kRelaxed);
  if (accepted->job.on_complete) {
    guarded("transfer's end", [&] { accepted->job.on_complete(std::move(outcome)); });
  }
  accepted.reset();  // what the functions own goes before anybody is told that the job is over
  MutexLock lock(mutex);
  if (--unfinished == 0) idle.notify_all();
}

TransferEngine::TransferEngine(DeviceRuntime& runtime, DiskIo& disk, const Clock& clock,
                               TransferEngineOptions options)
    : impl_(std::make_unique<Impl>(runtime, disk, clock, options)) {}

TransferEngine::~TransferEngine() = default;

Result<JobId> TransferEngine::submit(TransferJob&& job) { return impl_->submit(std::move(job)); }

bool TransferEngine::cancel(JobId id) { return impl_->cancel(id); }

bool TransferEngine::raise(JobId id, std::int32_t priority) { return impl_->raise(id, priority); }

void TransferEngine::expire_overdue() { impl_->expire_overdue(); }

TransferEngineStats TransferEngine::stats() const {
  const Counters& now = impl_->counters;
  return {.queued = now.queued.load(kRelaxed),
          .running = now.running.load(kRelaxed),
          .submitted = now.submitted.load(kRelaxed),
          .done = now.done.load(kRelaxed),
          .failed = now.failed.load(kRelaxed),
          .cancelled = now.cancelled.load(kRelaxed),
          .rejected = now.rejected.load(kRelaxed),
          .bytes_moved = now.bytes_moved.load(kRelaxed)};
}

std::vector<NamedAllocator> TransferEngine::allocators() const {
  std::vector<NamedAllocator> all;
  if (impl_->scratch) all = impl_->scratch->statistics();
  all.push_back({"transfer_staging", "host", impl_->staging.statistics()});
  return all;
}

DiskIo& TransferEngine::disk() const { return impl_->disk; }

void TransferEngine::wait_idle() {
  MutexLock lock(impl_->mutex);
  while (impl_->unfinished > 0) impl_->idle.wait(impl_->mutex);
}

}  // namespace cairn
