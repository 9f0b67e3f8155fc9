#include "blockmgr/engine_memory/layer_copy.hpp"

#include <algorithm>
#include <utility>

namespace cairn {
namespace {

// Bytes per step. A step is a job, which costs about 50 us of thread wake-ups: little compared to
// the 1 ms that these bytes take. An engine that starts with the first layers waits no longer than
// that.
constexpr std::uint64_t kStepBytes = 8ull << 20;
// A next step is queued when one ends, and both cores of a small machine are busy.
constexpr std::size_t kStepsUnderWay = 2;

bool is_on_disk(const BlockLayout& layout) { return layout.storage_kind() == StorageKind::disk; }

std::uint64_t layers_a_step(const LayerCopy::Request& request) {
  const std::uint64_t layers = request.source->config().num_layers;
  if (is_on_disk(*request.source) || is_on_disk(*request.destination)) return layers;
  const std::uint64_t layer_bytes = std::max<std::uint64_t>(
      request.pairs.size() * (request.source->geometry().block_bytes() / layers), 1);
  return std::clamp<std::uint64_t>(kStepBytes / layer_bytes, 1, layers);
}

}  // namespace

LayerCopy::LayerCopy(Request request)
    : request_(std::move(request)),
      layers_(request_.source->config().num_layers),
      layers_a_step_(layers_a_step(request_)) {}

std::shared_ptr<LayerCopy> LayerCopy::start(Request request) {
  auto copy = std::make_shared<LayerCopy>(std::move(request));
  copy->submit_next();
  return copy;
}

void LayerCopy::cancel() {
  std::vector<JobId> jobs;
  {
    MutexLock lock(mutex_);
    fail_all({ErrorCode::cancelled, "the transfer was cancelled"});
    for (const auto& step : steps_) {
      if (step->job && !step->has_ended) jobs.push_back(*step->job);
    }
  }
  for (const JobId job : jobs) request_.core->services->scheduler.cancel(job);
}

// Sets the error of all pairs that have none yet.
void LayerCopy::fail_all(const Error& error) {
  if (std::exchange(stopped_, true)) return;
  for (std::size_t i = 0; i < request_.pairs.size(); ++i) errors_.try_emplace(i, error);
}

void LayerCopy::submit_next() {
  while (add_step()) {
  }
  std::vector<Failure> failures;
  {
    MutexLock lock(mutex_);
    if (under_way_ > 0 || std::exchange(reported_, true)) return;
    for (auto& [pair, error] : errors_) failures.push_back({pair, std::move(error)});
  }
  request_.ended(std::move(failures));
}

// Returns false if no step can start now.
bool LayerCopy::add_step() {
  const auto goes_on = request_.may_go_on();
  std::size_t number = 0;
  {
    MutexLock lock(mutex_);
    const std::uint64_t first = steps_.empty() ? 0 : steps_.back()->end_layer;
    if (stopped_ || first == layers_ || under_way_ == kStepsUnderWay) return false;
    if (!goes_on) {
      fail_all(goes_on.error());
      return false;
    }
    auto step = std::make_unique<Step>();
    const std::uint64_t count = std::min(layers_a_step_, layers_ - first);
    step->end_layer = first + count;
    if (count < layers_) {
      step->source.emplace(request_.source->layers({.first = first, .count = count}));
      step->destination.emplace(request_.destination->layers({.first = first, .count = count}));
    }
    number = steps_.size();
    steps_.push_back(std::move(step));
    ++under_way_;
  }
  submit(number);
  return true;
}

void LayerCopy::submit(std::size_t number) {
  TransferJob job;
  {
    MutexLock lock(mutex_);
    const Step& step = *steps_[number];
    job.source = step.source ? &*step.source : request_.source;
    job.destination = step.destination ? &*step.destination : request_.destination;
  }
  job.pairs = request_.pairs;
  job.source_outers = request_.source_outers;
  job.urgency = request_.urgency;
  job.through_staging = true;
  request_.core->submit(
      std::move(job),
      [self = shared_from_this(), number](const JobOutcome& outcome) {
        self->step_ended(number, outcome);
      },
      [self = shared_from_this(), number](JobId id) {
        MutexLock lock(self->mutex_);
        self->steps_[number]->job = id;
      });
}

void LayerCopy::step_ended(std::size_t number, const JobOutcome& outcome) {
  std::optional<std::uint64_t> progressed;
  {
    MutexLock lock(mutex_);
    Step& step = *steps_[number];
    step.has_ended = true;
    step.has_arrived = outcome.state == JobState::done;
    for (const BlockFailure& failure : outcome.failures) {
      errors_.try_emplace(failure.index, failure.error);
    }
    if (errors_.size() == request_.pairs.size()) stopped_ = true;
    if (outcome.state == JobState::cancelled) {
      fail_all({ErrorCode::cancelled, "the server is shutting down"});
    }
    std::uint64_t done = 0;
    for (const auto& one : steps_) {
      if (!one->has_arrived) break;
      done = one->end_layer;
    }
    if (done > layers_done_) progressed = layers_done_ = done;
    --under_way_;
    // Called under the lock, so that the numbers rise.
    if (progressed) request_.progressed(*progressed);
  }
  submit_next();
}

}  // namespace cairn
