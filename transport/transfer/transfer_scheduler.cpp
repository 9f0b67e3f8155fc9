#include "transport/transfer/transfer_scheduler.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "base/assert.hpp"
#include "base/cache_line.hpp"
#include "base/mutex.hpp"
#include "base/task_threads.hpp"
#include "base/thread.hpp"
#include "transport/transfer/fair_queue.hpp"
#include "transport/transfer/job_rules.hpp"
#include "transport/transfer/memory_transfer.hpp"
#include "transport/transfer/slot_transfer.hpp"

namespace cairn {
namespace {

constexpr std::string_view kTransferStaging = "transfer_staging";

using Counter = std::atomic<std::uint64_t>;
constexpr auto kRelaxed = std::memory_order_relaxed;

// TransferSchedulerStats, readable without a lock. Each value is exact; values read together may be
// from slightly different moments.
struct alignas(kLinePairBytes) Counters {
  // [from][to][strategy]
  std::array<std::array<std::array<Counter, kNumCopyStrategies>, kNumStorageKinds>,
             kNumStorageKinds>
      copied{};
  PrefetchCounts prefetched;
  Counter queued{0};
  Counter running{0};
  Counter submitted{0};
  Counter done{0};
  Counter failed{0};
  Counter cancelled{0};
  Counter rejected{0};
  Counter bytes_moved{0};

  Counter& of(StorageKinds kinds, CopyStrategy strategy) {
    return copied[static_cast<std::size_t>(kinds.source)]
                 [static_cast<std::size_t>(kinds.destination)][static_cast<std::size_t>(strategy)];
  }
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

static_assert(has_pairs_of_its_own<Counters>);

JobOutcome cancelled_outcome() {
  JobOutcome outcome;
  outcome.state = JobState::cancelled;
  return outcome;
}

bool is_on_disk(const TransferJob& job) { return job.slots != nullptr; }

StorageKinds kinds_of(const TransferJob& job) {
  return {job.source->storage_kind(), job.destination->storage_kind()};
}

std::unique_ptr<Executor> own_threads(const TransferSchedulerOptions& options) {
  return std::make_unique<TaskThreads>(
      TaskThreads::Options{.name = "transfer", .threads = options.workers + options.disk_threads});
}

// A path that parts of jobs share, with limits.
struct Route {
  const std::uint32_t max_parts;
  const std::uint64_t max_bytes;
  FairQueue queue = {};
  std::uint32_t parts = 0;         // in progress
  std::uint64_t bytes = 0;         // in progress
  std::uint32_t others_parts = 0;  // parts whose bytes nobody waits for
  std::uint64_t others_bytes = 0;

  // A single part may always run, whatever its size.
  FairQueue::Classes has_room_for() const {
    const bool room = parts == 0 || (parts < max_parts && bytes < max_bytes);
    const bool others_room = others_parts == 0 || (others_parts < (max_parts + 1) / 2 &&
                                                   others_bytes < (max_bytes + 1) / 2);
    return {room, room, room && others_room, room && others_room, room && others_room};
  }
  void add(Urgency urgency, std::uint64_t part_bytes) {
    ++parts;
    bytes += part_bytes;
    if (is_waited_for(urgency)) return;
    ++others_parts;
    others_bytes += part_bytes;
  }
  void remove(Urgency urgency, std::uint64_t part_bytes) {
    --parts;
    bytes -= part_bytes;
    if (is_waited_for(urgency)) return;
    --others_parts;
    others_bytes -= part_bytes;
  }
};

// A part of a job, taken from its route.
struct Part {
  std::shared_ptr<ActiveJob> job;
  PairRange pairs;
  std::uint64_t bytes = 0;
};

}  // namespace

// A job is in its route's queue while it has pairs to start, and ends with its last part.
// Completions and the start of parts run without the mutex.
struct TransferScheduler::Impl {
  Impl(DeviceRuntime& device_runtime, DiskIo& disk_io, const Clock& engine_clock,
       TransferSchedulerOptions engine_options, std::unique_ptr<Executor> its_executor);
  ~Impl();
  void wait_idle() {
    MutexLock lock(mutex);
    while (unfinished > 0) executor->wait(mutex, idle);
  }

  Result<JobId> submit(TransferJob&& job);
  bool cancel(JobId id);
  bool raise(JobId id, const Raise& to);

  Result<> check_device(int device_id) const {
    if (std::ranges::any_of(runtime.devices(),
                            [&](const DeviceInfo& device) { return device.id == device_id; })) {
      return {};
    }
    return Error{ErrorCode::out_of_range, "there is no device " + std::to_string(device_id)};
  }
  Route& route_of(const TransferJob& job) CAIRN_REQUIRES(mutex) {
    return is_on_disk(job) ? disk_route : memory_route;
  }
  std::size_t waiting() const CAIRN_REQUIRES(mutex) {
    return memory_route.queue.waiting() + disk_route.queue.waiting();
  }
  void count() CAIRN_REQUIRES(mutex);

  // Starts parts while the route has room.
  void pump(Route& route);
  // Returns nullopt if no part may start now.
  std::optional<Part> take_part(Route& route);
  void begin(const Part& part);
  void ended(const Part& part);  // on any thread
  // Counts the outcome, then calls on_complete.
  void complete(ActiveJob& job, JobOutcome outcome);
  void forget(std::uint64_t jobs_and_parts);

  DeviceRuntime& runtime;
  DiskIo& disk;
  const Clock& clock;
  const TransferSchedulerOptions options;
  PinnedPool staging;
  DeviceMemory device_memory;

  alignas(kLinePairBytes) mutable Mutex mutex;
  Condition idle;
  Route memory_route CAIRN_GUARDED_BY(mutex);
  Route disk_route CAIRN_GUARDED_BY(mutex);
  Counters counters;
  std::uint64_t last_id CAIRN_GUARDED_BY(mutex) = 0;
  // Accepted jobs whose completion has not returned, plus parts taken whose ended() has not
  // returned.
  std::uint64_t unfinished CAIRN_GUARDED_BY(mutex) = 0;
  std::uint64_t running CAIRN_GUARDED_BY(mutex) = 0;  // jobs with a part started
  bool stopping CAIRN_GUARDED_BY(mutex) = false;
  std::unique_ptr<Executor> executor;
  StreamPool streams;
  const JobEquipment equipment;
};

TransferScheduler::Impl::Impl(DeviceRuntime& device_runtime, DiskIo& disk_io,
                              const Clock& engine_clock, TransferSchedulerOptions engine_options,
                              std::unique_ptr<Executor> its_executor)
    : runtime(device_runtime),
      disk(disk_io),
      clock(engine_clock),
      options(engine_options),
      staging(device_runtime, {.limit_bytes = engine_options.staging_bytes}),
      device_memory(device_runtime, engine_options.device_kept_bytes),
      memory_route{.max_parts = options.workers, .max_bytes = UINT64_MAX},
      disk_route{.max_parts = options.disk_parts, .max_bytes = options.disk_bytes},
      executor(its_executor ? std::move(its_executor) : own_threads(options)),
      streams(device_runtime, device_memory, *executor),
      equipment{disk, staging, streams, *executor} {
  CAIRN_ASSERT(options.workers > 0 && options.disk_parts > 0, "no job would ever run");
}

TransferScheduler::Impl::~Impl() {
  std::vector<std::shared_ptr<ActiveJob>> waiting;
  {
    MutexLock lock(mutex);
    stopping = true;
    for (Route* route : {&memory_route, &disk_route}) {
      for (auto& job : route->queue.remove_waiting()) waiting.push_back(std::move(job));
    }
    count();
  }
  for (const auto& job : waiting) {
    complete(*job, cancelled_outcome());
    forget(1);
  }
  wait_idle();
  executor.reset();  // its last tasks may still use the streams
}

Result<JobId> TransferScheduler::Impl::submit(TransferJob&& job) {
  Result<> checked = check_job(job);
  const auto reject = [&](Error error) -> Result<JobId> {
    counters.rejected.fetch_add(1, kRelaxed);
    return error;
  };
  if (!checked) return reject(std::move(checked).error());

  Route* route = nullptr;
  JobId id;
  {
    MutexLock lock(mutex);
    if (stopping)
      return reject({ErrorCode::unavailable, "the transfer scheduler is shutting down"});
    if (waiting() >= options.max_queued_jobs) {
      return reject({ErrorCode::queue_full, "all " + std::to_string(options.max_queued_jobs) +
                                                " places in the transfer queue are taken"});
    }
    id = JobId{++last_id};
    route = &route_of(job);
    auto active = std::make_shared<ActiveJob>(id, clock.now());
    active->strategy = choose_strategy(kinds_of(job), options.strategy);
    active->job = std::move(job);
    try {
      route->queue.push(active);
    } catch (const std::bad_alloc&) {
      job = std::move(active->job);
      throw;
    }
    counters.submitted.fetch_add(1, kRelaxed);
    ++unfinished;
    count();
  }
  pump(*route);
  return id;
}

bool TransferScheduler::Impl::cancel(JobId id) {
  std::shared_ptr<ActiveJob> job;
  {
    MutexLock lock(mutex);
    job = memory_route.queue.remove(id);
    if (job == nullptr) job = disk_route.queue.remove(id);
    count();
  }
  if (job == nullptr) return false;
  complete(*job, cancelled_outcome());
  forget(1);
  return true;
}

bool TransferScheduler::Impl::raise(JobId id, const Raise& to) {
  MutexLock lock(mutex);
  return memory_route.queue.raise(id, to) || disk_route.queue.raise(id, to);
}

void TransferScheduler::Impl::count() {
  counters.running.store(running, kRelaxed);
  counters.queued.store(waiting(), kRelaxed);
}

void TransferScheduler::Impl::pump(Route& route) {
  while (const auto part = take_part(route)) {
    if (guarded("transfer", [&] { begin(*part); })) continue;
    part->job->report.lost(part->pairs.count);
    ended(*part);
  }
}

std::optional<Part> TransferScheduler::Impl::take_part(Route& route) {
  MutexLock lock(mutex);
  const auto* const front = route.queue.front(route.has_room_for());
  if (front == nullptr) return std::nullopt;
  std::shared_ptr<ActiveJob> active = *front;
  const TransferJob& job = active->job;
  const TimePoint now = clock.now();
  const std::size_t left = job.pairs.size() - active->next;
  const std::size_t count_of =
      std::min(left, is_on_disk(job) ? slots_per_part(job) : memory_pairs_per_part(job));
  if (!active->begun_at) {
    active->begun_at = now;
    ++running;
  }
  const PairRange pairs{active->next, count_of};
  const std::uint64_t bytes = count_of * job.source->geometry().block_bytes();
  route.queue.taken(*active, {.next = pairs.first + pairs.count, .bytes = bytes}, now);
  route.add(job.urgency, bytes);
  ++active->parts_under_way;
  ++unfinished;
  count();
  return Part{std::move(active), pairs, bytes};
}

void TransferScheduler::Impl::begin(const Part& part) {
  const ActiveJob& active = *part.job;
  if (part.pairs.count == 0) return executor->post([this, part] { ended(part); });
  const CopyMode mode{.strategy = active.strategy,
                      .polling_interval_us = options.polling_interval_us,
                      .source_goes = active.job.source_goes,
                      .thresholds = options.copy_forms,
                      .visibility = runtime.visibility(),
                      .prefetched = &counters.prefetched};
  const auto move = is_on_disk(active.job) ? move_slots : move_in_memory;
  move({part.job, part.pairs, mode}, equipment, [this, part] { ended(part); });
}

// The part's room is freed after the completion. So with max_parts 1, jobs end in the order they
// started.
void TransferScheduler::Impl::ended(const Part& part) {
  ActiveJob& active = *part.job;
  const Urgency urgency = active.job.urgency;
  Route* route = nullptr;
  bool is_last = false;
  {
    MutexLock lock(mutex);
    route = &route_of(active.job);
    is_last = --active.parts_under_way == 0 && active.next == active.job.pairs.size();
    if (is_last) --running;
    count();
  }
  if (is_last) {
    JobOutcome outcome = cancelled_outcome();
    guarded("transfer", [&] { outcome = active.report.take_outcome(); });
    outcome.begun = true;
    outcome.running = clock.now() - *active.begun_at;
    outcome.queued = *active.begun_at - active.submitted_at;
    complete(active, std::move(outcome));
  }
  {
    MutexLock lock(mutex);
    route->remove(urgency, part.bytes);
  }
  pump(*route);
  forget(is_last ? 2 : 1);
}

void TransferScheduler::Impl::complete(ActiveJob& active, JobOutcome outcome) {
  counters.bytes_moved.fetch_add(outcome.bytes_moved, kRelaxed);
  counters.of(outcome.state).fetch_add(1, kRelaxed);
  if (outcome.begun && active.job.operation == JobOperation::copy) {
    counters.of(kinds_of(active.job), active.strategy).fetch_add(1, kRelaxed);
  }
  if (active.job.on_complete) {
    guarded("transfer's end", [&] { active.job.on_complete(std::move(outcome)); });
  }
  active.job = {};  // destroy what the callbacks own before the job counts as over
}

// The scheduler may be destroyed once this returns.
void TransferScheduler::Impl::forget(std::uint64_t jobs_and_parts) {
  MutexLock lock(mutex);
  unfinished -= jobs_and_parts;
  if (unfinished == 0) idle.notify_all();
}

TransferScheduler::TransferScheduler(DeviceRuntime& runtime, DiskIo& disk, const Clock& clock,
                                     TransferSchedulerOptions options,
                                     std::unique_ptr<Executor> executor)
    : impl_(std::make_unique<Impl>(runtime, disk, clock, options, std::move(executor))) {}

TransferScheduler::~TransferScheduler() = default;

Result<JobId> TransferScheduler::submit(TransferJob&& job) { return impl_->submit(std::move(job)); }

bool TransferScheduler::cancel(JobId id) { return impl_->cancel(id); }

bool TransferScheduler::raise(JobId id, const Raise& to) { return impl_->raise(id, to); }

TransferSchedulerStats TransferScheduler::stats() const {
  Counters& now = impl_->counters;
  std::vector<TransferSchedulerStats::Copied> copied;
  for (const StorageKind from : kStorageKinds) {
    for (const StorageKind to : kStorageKinds) {
      for (std::size_t strategy = 0; strategy < kNumCopyStrategies; ++strategy) {
        const auto how = static_cast<CopyStrategy>(strategy);
        const std::uint64_t jobs = now.of(StorageKinds{from, to}, how).load(kRelaxed);
        if (jobs > 0) copied.push_back({from, to, how, jobs});
      }
    }
  }
  return {.queued = now.queued.load(kRelaxed),
          .running = now.running.load(kRelaxed),
          .submitted = now.submitted.load(kRelaxed),
          .done = now.done.load(kRelaxed),
          .failed = now.failed.load(kRelaxed),
          .cancelled = now.cancelled.load(kRelaxed),
          .rejected = now.rejected.load(kRelaxed),
          .bytes_moved = now.bytes_moved.load(kRelaxed),
          .copied = std::move(copied),
          .prefetched_to_device_bytes = now.prefetched.to_device_bytes.load(kRelaxed),
          .prefetched_to_host_bytes = now.prefetched.to_host_bytes.load(kRelaxed)};
}

std::vector<NamedAllocator> TransferScheduler::allocators() const {
  std::vector<NamedAllocator> all = impl_->device_memory.statistics();
  all.push_back({std::string(kTransferStaging), "host", impl_->staging.statistics()});
  return all;
}

bool TransferScheduler::give_back_cached(std::string_view allocator) {
  if (allocator == kTransferStaging) {
    impl_->staging.trim();
    return true;
  }
  return impl_->device_memory.give_back_cached(allocator);
}

DeviceMemory& TransferScheduler::device_memory() { return impl_->device_memory; }

Result<Region> TransferScheduler::allocate_device(std::uint64_t size_bytes,
                                                  DeviceRuntime::DeviceOptions options) {
  return impl_->device_memory.allocate_whole(size_bytes, options);
}

Result<std::uint64_t> TransferScheduler::empty_cache(int device_id) {
  CAIRN_TRY(impl_->check_device(device_id));
  return impl_->device_memory.empty_cache(device_id);
}

void TransferScheduler::empty_cache_later(int device_id) {
  guarded("emptying a device's cache", [&] {
    impl_->executor->post([this, device_id] { (void)empty_cache(device_id).has_value(); });
  });
}

Result<> TransferScheduler::reset_peaks(int device_id) {
  CAIRN_TRY(impl_->check_device(device_id));
  impl_->device_memory.reset_peaks(device_id);
  return {};
}

DiskIo& TransferScheduler::disk() const { return impl_->disk; }

Executor& TransferScheduler::executor() const { return *impl_->executor; }

void TransferScheduler::wait_idle() { impl_->wait_idle(); }

}  // namespace cairn
